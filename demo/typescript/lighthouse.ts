// Asks for a text, which is shown as it grows, and for a picture, which is saved with what it looked like on the way.
//
//     npm start -- [URL] [DIRECTORY]
//
// URL is that of the server, http://127.0.0.1:8000 by default, and OMNI_JOBS_API_KEY a key of it, if it has keys.

import { randomUUID } from "node:crypto";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import OpenAI from "openai";

const [url = "http://127.0.0.1:8000", directory = "lighthouse"] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: process.env.OMNI_JOBS_API_KEY ?? "none" });

async function tell(prompt: string): Promise<string> {
  const stream = await client.chat.completions.create({
    model: "echo_media",
    messages: [{ role: "user", content: prompt }],
    stream: true,
  });
  let text = "";
  for await (const chunk of stream) {
    const more = chunk.choices[0]?.delta.content ?? "";
    process.stdout.write(more);
    text += more;
  }
  process.stdout.write("\n");
  return text;
}

async function draw(prompt: string): Promise<string> {
  const slowly = { stages: { picture: { delay_s: 2 } } }; // this pipeline has no model, and would be done at once
  // With a key of its own the request may be sent again after a lost connection: it is the same job then.
  const stream = await client.images.generate(
    { model: "echo_media", prompt, size: "1024x1024", stream: true, partial_images: 2, ...slowly },
    { headers: { "Idempotency-Key": randomUUID() } },
  );
  await mkdir(directory, { recursive: true });
  let saved = "";
  for await (const event of stream) {
    const isWhole = event.type === "image_generation.completed";
    const name = isWhole ? "lighthouse" : `partial-${event.partial_image_index}`;
    const file = join(directory, `${name}.${event.output_format}`);
    await writeFile(file, Buffer.from(event.b64_json, "base64"));
    console.log(isWhole ? `${file} is the picture` : `${file} shows it on the way`);
    if (isWhole) saved = file;
  }
  return saved;
}

try {
  const text = await tell("A lighthouse stands by the sea, and its lamp turns.");
  if (!(await draw(text))) throw new Error("the stream ended without a picture");
} catch (error) {
  if (!(error instanceof OpenAI.APIError)) throw error;
  console.error(`${error.status ?? "stream"} ${error.code}: ${error.message}`); // its job_id says which job it was
  process.exitCode = 1;
}
