// The parameters of those stages alone that the chosen outputs need, and the options of these outputs.

function show() {
  const chosen = [...document.querySelectorAll('input[name="modalities"]:checked')].map((box) => box.value);
  for (const part of document.querySelectorAll("[data-modalities]")) {
    const isNeeded = !chosen.length || part.dataset.modalities.split(" ").some((each) => chosen.includes(each));
    part.hidden = !isNeeded;
    for (const field of part.querySelectorAll("fieldset, select")) field.disabled = !isNeeded;
  }
}

document.addEventListener("change", (event) => { if (event.target.name === "modalities") show(); });
document.addEventListener("htmx:after:swap", show);
show();
