// The note that says that what stands on the page is old, while the server does not answer; and no polls by hidden tabs.

const LATE_MS = 3000;  // a server that is started anew answers late, because its supervisor keeps the port open

const note = document.getElementById("freshness");
let late = null;

function tell(isOld) {
  if (note) note.hidden = !isOld;
  document.body.classList.toggle("old", isOld);
}

function isPoll(event) {
  return event.detail.ctx?.sourceElement?.hasAttribute("data-live");
}

function end(isOld) {
  clearTimeout(late);
  late = null;
  tell(isOld);
}

document.addEventListener("htmx:before:request", (event) => {
  if (!isPoll(event)) return;
  if (document.hidden) event.preventDefault();
  else late ??= setTimeout(tell, LATE_MS, true);
});
document.addEventListener("htmx:error", (event) => { if (isPoll(event)) end(true); });
document.addEventListener("htmx:after:request", (event) => {
  if (isPoll(event)) end(event.detail.ctx.response.status >= 500);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  for (const part of document.querySelectorAll("[data-live]")) window.htmx?.trigger(part, "every");
});
