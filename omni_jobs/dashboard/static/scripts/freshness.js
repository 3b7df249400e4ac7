// The note that says that what stands on the page is old, while the server does not answer; and no polls by hidden tabs.

const LATE_MS = 3000;  // a server that is started anew answers late, because its supervisor keeps the port open

const note = document.getElementById("freshness");
const late = new Map();  // by each part whose answer has not come: its timer
const old = new Set();  // parts

// Say that a part of the page, an element, is old, or no longer.
export function tell(part, isOld) {
  if (isOld) old.add(part);
  else old.delete(part);
  const isAny = [...old].some((each) => each.isConnected);
  if (note) note.hidden = !isAny;
  document.body.classList.toggle("old", isAny);
}

// The part of the page that this request polls for; null: it is another request.
function partOf(event) {
  const part = event.detail.ctx?.sourceElement;
  return part?.hasAttribute("data-live") ? part : null;
}

function end(part, isOld) {
  clearTimeout(late.get(part));
  late.delete(part);
  tell(part, isOld);
}

document.addEventListener("htmx:before:request", (event) => {
  const part = partOf(event);
  if (!part) return;
  if (document.hidden) event.preventDefault();
  else if (!late.has(part)) late.set(part, setTimeout(tell, LATE_MS, part, true));
});
document.addEventListener("htmx:error", (event) => {
  const part = partOf(event);
  if (part) end(part, true);
});
document.addEventListener("htmx:after:request", (event) => {
  const part = partOf(event);
  if (part) end(part, event.detail.ctx.response.status >= 400);  // a refused poll changes nothing on the page
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  for (const part of document.querySelectorAll("[data-live]")) window.htmx?.trigger(part, "every");
});
