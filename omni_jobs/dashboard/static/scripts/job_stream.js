// The page of an open job: it listens to the job's events, lets its text grow, and is drawn anew when something changes.

import { tell } from "./freshness.js";

const DRAW_MS = 2000;
const LOOK_MS = 10000;  // why a job waits changes without an event, and a database that is away sends none
const FRESH_MS = 1100;  // the server keeps what it has rendered for a second
const AGAIN_MS = 3000;

const head = () => document.getElementById("job-head");
let page = null;  // the element of the job that is followed
let textFrom = "";
let stream = null;
let again = null;
let drawing = null;
let missed = null;  // the section of a stage that began a moment ago, whose text has no place yet
let isBehind = false;  // the page is hidden, and something has changed since

function draw(afterMs = DRAW_MS) {
  if (drawing !== null && afterMs >= DRAW_MS) return;
  clearTimeout(drawing);
  drawing = setTimeout(() => {
    drawing = null;
    if (document.hidden) isBehind = true;
    else window.htmx?.trigger(page, "told");
  }, afterMs);
}

function drawEnd() {
  page.setAttribute("hx-get", `${page.getAttribute("hx-get").split("?")[0]}?ended=true`);  // not as it was a moment ago
  draw(0);
}

function isOld(is) { tell(document.body, is); }  // as far as the stream tells

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
  const id = `growing-${stage}-${attempt}`;
  const section = document.getElementById(id);
  if (!section) {
    draw(missed === id ? DRAW_MS : FRESH_MS);
    missed = id;
    return;
  }
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
  missed = null;
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
    its.addEventListener(name, () => draw());
  }
  for (const name of ["completed", "failed", "cancelled", "expired"]) {
    its.addEventListener(`job.${name}`, () => { its.close(); drawEnd(); });
  }
  its.addEventListener("error", () => {
    if (its !== stream) return;
    const isRefused = its.readyState === EventSource.CLOSED;  // by an answer, of which the browser tells nothing
    isOld(true);
    listenAgain(AGAIN_MS);
    if (isRefused) lookWhy();
  });
}

// Who has to sign in anew is led there, and of a job that is gone the page says so.
async function lookWhy() {
  const answer = await fetch(page.getAttribute("hx-get"), { headers: { "HX-Request": "true" } }).catch(() => null);
  if (answer?.status === 401) location.assign(answer.headers.get("HX-Redirect"));
  else if (answer?.status === 404) location.reload();
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && isBehind) { isBehind = false; draw(); }
});

function follow() {
  const found = document.getElementById("job");
  if (found === page) {
    if (missed && document.getElementById(missed)) listenAgain(0);
    return;
  }
  stream?.close();
  clearTimeout(drawing);
  clearTimeout(again);
  drawing = null;
  missed = null;
  isBehind = false;
  isOld(false);
  page = found;
  textFrom = head()?.dataset.textFrom ?? "";
  if (!page) return;
  forgetCut();
  listen();
}

setInterval(() => { if (head()?.dataset.final === "no") draw(0); }, LOOK_MS);
document.addEventListener("htmx:after:swap", follow);  // another job may stand there
follow();
