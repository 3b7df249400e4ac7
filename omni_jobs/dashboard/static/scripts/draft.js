// What was typed comes along to the form of another pipeline, within this tab.

const KEY = "omni-jobs-draft";
const text = document.getElementById("text");
const draft = sessionStorage.getItem(KEY);

if (text && draft !== null) {
  sessionStorage.removeItem(KEY);
  text.value ||= draft;
}

document.querySelector(".choices")?.addEventListener("click", () => {
  const typed = document.getElementById("text");
  if (typed?.value) sessionStorage.setItem(KEY, typed.value);
});
