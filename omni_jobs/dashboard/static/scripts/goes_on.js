// An action on many jobs that goes on by itself, a group with each answer, until the page is left. While the server is
// away, is busy or wants a key it waits, because what is left to do stands in this page alone.

const GROUP_MS = 300;  // time enough to press "Stop here"
const AGAIN_MS = 1000;
const note = document.getElementById("freshness");
const away = note.textContent;

// The page that the server answers with; a text: why there is none yet.
async function answerTo(form) {
  const headers = { "HX-Request": "true" };  // whoever has to sign in is told by 401
  let answer;
  try {
    answer = await fetch(form.action, { method: "POST", headers, body: new FormData(form) });
  } catch {
    return away;
  }
  if (answer.status === 401) return "Your session has ended: sign in in another tab, and this goes on.";
  if (answer.status === 429) return "The server is asked too often: this goes on in a while.";
  if (answer.status >= 500) return away;
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

async function goOn() {
  const form = document.querySelector("form[data-goes-on]");
  if (!form) return;
  const answer = await answerTo(form);
  const waits = typeof answer === "string";
  note.hidden = !waits;
  if (waits) {
    note.textContent = answer;
  } else {
    document.querySelector("main").replaceWith(answer.querySelector("main"));
    document.title = answer.title;
  }
  setTimeout(goOn, waits ? AGAIN_MS : GROUP_MS);
}

setTimeout(goOn, GROUP_MS);
