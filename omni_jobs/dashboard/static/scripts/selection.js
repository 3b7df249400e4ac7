// How many jobs are selected.

const output = document.getElementById("selected");
const of = document.getElementById("of");

function tell() {
  if (!output) return;
  const count = document.querySelectorAll('input[name="job"]:checked').length;
  output.textContent = count === 0 ? "" : count === 1 ? "1 job selected" : `${count} jobs selected`;
  if (count > 0) of.value = "selected";
}

document.addEventListener("change", (event) => { if (event.target.name === "job") tell(); });
document.addEventListener("htmx:after:swap", tell);
tell();
