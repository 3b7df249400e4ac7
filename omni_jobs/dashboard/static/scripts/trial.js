// Submits the form without leaving the page, and shows the answer, or what is wrong, beside it.

const section = document.getElementById("answer");
let isSending = false;
let plays = false;  // whether the answer's sound is played once it is there, because the question was spoken

function part(name) { return document.getElementById(name); }

function tell(text) {
  const line = document.createElement("p");
  line.className = "notice bad";
  line.textContent = text;
  part("problem").replaceChildren(line);
  part("problem").scrollIntoView({ block: "nearest" });
}

function forgetProblems(form) {
  part("problem").replaceChildren();
  for (const each of form.querySelectorAll('[id^="problem-"]')) each.remove();
  for (const each of form.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
}

async function showAnswer(form, text) {
  forgetProblems(form);
  plays = "spoken" in form.dataset;
  section.replaceChildren();
  await window.htmx.swap({ sourceElement: form, text, target: section, swap: "beforeend" });
  const { job, once } = part("job").dataset;
  form.elements.once.value = once;
  const query = new URLSearchParams({ pipeline: form.elements.model.value, job });
  history.replaceState(null, "", `?${query}`);
  section.scrollIntoView({ block: "nearest" });
}

async function showProblems(form, answer, text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  const made = page.getElementById("trial-form");
  if (!made) return tell(page.querySelector(".wrong")?.textContent ?? `The server refuses it: ${answer.status}`);
  await window.htmx.swap({ sourceElement: form, text: made.outerHTML, target: form, swap: "outerMorph" });
  const wrong = document.querySelector("#trial-form [aria-invalid]");
  for (let each = wrong?.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  (wrong ?? part("problem")).scrollIntoView({ block: "nearest" });
  wrong?.focus();
}

async function send(form) {
  if (isSending) return;
  isSending = true;
  part("submit").disabled = true;
  part("sending").textContent = "Submitting…";
  try {
    const answer = await fetch(form.action, {
      method: "POST",
      body: new FormData(form),
      headers: { "HX-Request": "true" },
    });
    const text = await answer.text();
    if (answer.headers.has("HX-Redirect")) location.href = answer.headers.get("HX-Redirect");
    else if (answer.status === 201) await showAnswer(form, text);
    else await showProblems(form, answer, text);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    tell("No answer from the server. What you have typed and attached is still here: submit it again.");
  } finally {
    delete form.dataset.spoken;
    isSending = false;
    part("submit").disabled = false;
    part("sending").textContent = "";
  }
}

document.addEventListener("submit", (event) => {
  if (event.target.id !== "trial-form") return;
  event.preventDefault();
  send(event.target);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form?.requestSubmit?.();
});
document.addEventListener("htmx:after:swap", () => {
  const audio = section.querySelector("audio");
  if (!plays || !audio) return;
  plays = false;
  audio.play().catch(() => {});  // the browser may want a click first
});
