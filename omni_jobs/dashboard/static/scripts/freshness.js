// The note that says that what stands on the page is old, while the server does not answer; and no polls by hidden tabs.

const note = document.getElementById("freshness");

function tell(isOld) {
  if (note) note.hidden = !isOld;
  document.body.classList.toggle("old", isOld);
}

function isPoll(event) {
  return event.detail.ctx?.sourceElement?.hasAttribute("data-live");
}

document.addEventListener("htmx:before:request", (event) => {
  if (document.hidden && isPoll(event)) event.preventDefault();
});
document.addEventListener("htmx:error", (event) => { if (isPoll(event)) tell(true); });
document.addEventListener("htmx:after:request", (event) => {
  if (isPoll(event)) tell(event.detail.ctx.response.status >= 500);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  for (const part of document.querySelectorAll("[data-live]")) window.htmx?.trigger(part, "every");
});
