// The page of an open job: it listens to the job's events, lets its text grow, and is drawn anew when something changes.

const page = document.getElementById("job");
const note = document.getElementById("freshness");
const DRAW_MS = 2000;
const AGAIN_MS = 3000;

const head = () => document.getElementById("job-head");
let textFrom = head()?.dataset.textFrom ?? "";
let stream = null;
let again = null;
let drawing = null;
let isBehind = false;  // the page is hidden, and something has changed since

function draw() {
  drawing ??= setTimeout(() => {
    drawing = null;
    if (document.hidden) isBehind = true;
    else window.htmx?.trigger(page, "told");
  }, DRAW_MS);
}

function isOld(is) {
  note.hidden = !is;
  document.body.classList.toggle("old", is);
}

// Positions count characters, as the server does, and not the two units that JavaScript has for some.
function have(pre) { return [...pre.textContent].length; }

// Of a text that is too long for the page's first answer its end stands there until the stream tells all of it.
function forgetCut() {
  const known = textFrom.split(",").map((place) => place.split(":")[0]);
  for (const pre of document.querySelectorAll("pre[data-stage]")) {
    if (!known.includes(pre.dataset.stage)) pre.textContent = "";
  }
}

function grow({ stage, attempt, offset, text }) {
  const section = document.getElementById(`growing-${stage}-${attempt}`);
  if (!section) return draw();  // the stage has begun a moment ago
  const pre = section.querySelector("pre");
  const known = have(pre);
  if (offset > known) return listenAgain(0);
  const isAtEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
  pre.append([...text].slice(known - offset).join(""));
  section.hidden = false;
  if (isAtEnd) pre.scrollTop = pre.scrollHeight;
}

function places() {
  return [...document.querySelectorAll("pre[data-stage]")]
    .map((pre) => `${pre.dataset.stage}:${pre.dataset.attempt}:${have(pre)}`).join(",");
}

function listenAgain(afterMs) {
  stream?.close();
  stream = null;
  textFrom = places();
  clearTimeout(again);
  again = setTimeout(listen, afterMs);
}

function listen() {
  if (head()?.dataset.final === "yes") return isOld(false);
  const its = new EventSource(page.dataset.events + (textFrom ? `?text_from=${encodeURIComponent(textFrom)}` : ""));
  stream = its;
  its.addEventListener("open", () => isOld(false));
  its.addEventListener("text", (event) => grow(JSON.parse(event.data)));
  for (const name of ["stage", "progress", "picture", "artifact", "job.cancelling", "job.retried"]) {
    its.addEventListener(name, draw);
  }
  for (const name of ["completed", "failed", "cancelled", "expired"]) {
    its.addEventListener(`job.${name}`, () => { its.close(); draw(); });
  }
  its.addEventListener("error", () => {
    if (its !== stream) return;
    isOld(true);
    listenAgain(AGAIN_MS);
  });
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && isBehind) { isBehind = false; draw(); }
});
forgetCut();
listen();
