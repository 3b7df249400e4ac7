// The stream of small jobs that this page submits one by one, and the buttons that pull plugs without leaving it.

const button = document.getElementById("stream");
const pace = document.getElementById("pace");
const said = document.getElementById("said");
const { posts, every, most, seconds } = button.dataset;
const AGAIN_MS = 300;
const ANSWER_MS = 15000;
const UNDER_WAY = 3;  // jobs that are accepted before the first kill
const AFTER_KILL_MS = 3000;
const LONGER_MS = 30000;

class Refused extends Error {}

let stream = null;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function say(text, isWrong = false) {
  pace.textContent = "";
  said.textContent = text;
  said.classList.toggle("wrong", isWrong);
}

async function post(path, body) {
  const signal = AbortSignal.timeout(ANSWER_MS);
  const headers = { "HX-Request": "true" };  // whoever has to sign in is told by 401
  const answer = await fetch(posts + path, { method: "POST", headers, body, redirect: "manual", signal });
  if (answer.ok || answer.type === "opaqueredirect") return answer;
  const signIn = answer.headers.get("HX-Redirect");
  if (signIn) location.assign(signIn);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const why = page.querySelector(".wrong")?.textContent ?? `The server says ${answer.status}.`;
  throw new (answer.status >= 500 || answer.status === 429 ? Error : Refused)(why);
}

// Each job is submitted until it is accepted, and the next one only then: the same number again is the same job.
class Stream {
  isOn = true;
  pulls = 0;  // that are on their way
  accepted = 0;

  constructor() {
    this.begun = new Promise((resolve, reject) => { this.accept = resolve; this.fail = reject; });
    this.begun.catch(() => {});  // whoever began it hears of it as well
  }

  async run() {
    try {
      const { stream } = await (await this.submitted("/streams")).json();
      this.end = performance.now() + 1000 * seconds;
      this.latest = this.end + LONGER_MS;
      while (this.isOn && this.accepted < most && (this.pulls > 0 || performance.now() < this.end)) {
        await this.submitted(`/streams/${stream}/jobs/${this.accepted + 1}`);
        this.accepted++;
        if (this.accepted >= UNDER_WAY) this.accept();
        const left = Math.max(0, Math.ceil((this.end - performance.now()) / 1000));
        pace.textContent = `${this.accepted} accepted; the stream ends in ${left} s.`;
        await pause(1000 * every);
      }
      say(`The stream has ended: ${this.accepted} accepted. What is on its way goes on by itself.`);
    } catch (error) {
      say(this.isOn ? error.message : `The stream is stopped: ${this.accepted} accepted.`, this.isOn);
    }
    this.isOn = false;
    this.fail(new Error("The stream has ended before anything was killed."));
  }

  // Some jobs follow each kill, so that it shows when all went on.
  async pull(form) {
    await this.begun;  // so that it meets jobs that run
    this.pulls++;
    try {
      await post("/kills", form);
    } finally {
      this.pulls--;
      this.end = Math.min(this.latest, Math.max(this.end, performance.now() + AFTER_KILL_MS));
    }
  }

  async submitted(path) {
    for (;;) {
      try {
        return await post(path);
      } catch (error) {
        if (error instanceof Refused || !this.isOn) throw error;
        await pause(AGAIN_MS);
      }
    }
  }
}

async function begin() {
  const own = stream = new Stream();
  say("");
  button.textContent = "Stop the stream";
  await own.run();
  if (stream === own) button.textContent = "Start the stream";
}

button.hidden = document.getElementById("no-echo") !== null;
button.addEventListener("click", () => {
  if (stream?.isOn) stream.isOn = false;
  else begin();
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("[data-pulls]")) return;
  event.preventDefault();
  try {
    const body = new FormData(form);
    if (!stream?.isOn && !button.hidden) begin();
    await (stream ? stream.pull(body) : post("/kills", body));
  } catch (error) {
    say(error.message, true);
  }
});
