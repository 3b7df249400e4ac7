// The files that are attached to the form: their names, pictures as they look, and a button that takes them away.

const WIDTH = 144;

function size(bytes) {
  return bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

async function thumbnail(file) {
  const bitmap = await createImageBitmap(file);
  const canvas = document.createElement("canvas");
  canvas.width = WIDTH;
  canvas.height = Math.max(1, Math.round(WIDTH * bitmap.height / bitmap.width));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas;
}

async function figure(file) {
  const made = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const name = document.createElement("bdi");
  name.textContent = file.name;
  caption.append(name, ` ${size(file.size)}`);
  if (file.type.startsWith("image/")) {
    try { made.append(await thumbnail(file)); } catch { caption.append(", which this browser cannot show"); }
  }
  made.append(caption);
  return made;
}

async function show(input) {
  const place = document.getElementById(`thumbnails-${input.name}`);
  if (!place) return;
  const files = [...input.files];
  const figures = await Promise.all(files.map(figure));
  if (files.length !== input.files.length || files.some((file, at) => file !== input.files[at])) return;  // others meanwhile
  place.replaceChildren(...figures);
  if (!files.length) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Take away";
  button.addEventListener("click", () => {
    input.value = "";
    input.dispatchEvent(new Event("change", { bubbles: true }));
    input.focus();
  });
  place.append(button);
}

document.addEventListener("change", (event) => { if (event.target.type === "file") show(event.target); });
for (const input of document.querySelectorAll('input[type="file"]')) show(input);
