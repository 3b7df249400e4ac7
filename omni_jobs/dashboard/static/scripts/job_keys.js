// The keyboard of the list of jobs: / j k x Enter ?

const dialog = document.getElementById("keys");
const help = document.getElementById("help");

function rows() { return [...document.querySelectorAll("tr[data-href]")]; }

function move(by) {
  const all = rows();
  const at = all.indexOf(document.activeElement?.closest("tr[data-href]"));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
  next?.focus();
}

function onRow(act) {
  const row = document.activeElement?.closest("tr[data-href]");
  if (row) act(row);
}

const keys = {
  "/": () => document.getElementById("first-filter").focus(),
  "j": () => move(1),
  "k": () => move(-1),
  "x": () => onRow((row) => row.querySelector('input[name="job"]')?.click()),
  "?": () => dialog.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (event.key === "Enter" && event.target.matches?.("tr[data-href]")) {
    location.href = event.target.dataset.href;
    return;
  }
  if (event.target.matches?.('input:not([type="checkbox"]), select, textarea')) return;
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

if (help) {
  help.hidden = false;
  help.addEventListener("click", () => dialog.showModal());
}
