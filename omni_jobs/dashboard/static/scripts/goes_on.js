// An action on many jobs that goes on by itself, a group with each answer, until the page is left. While the server is
// away it waits, because what is left to do stands in this page alone.

const GROUP_MS = 300;  // time enough to press "Stop here"
const AGAIN_MS = 1000;
const note = document.getElementById("freshness");

async function done(form) {
  const answer = await fetch(form.action, { method: "POST", body: new FormData(form) });
  if (answer.status >= 500) throw new Error(answer.statusText);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

async function goOn() {
  const form = document.querySelector("form[data-goes-on]");
  if (!form) return;
  try {
    const page = await done(form);
    note.hidden = true;
    document.querySelector("main").replaceWith(page.querySelector("main"));
    document.title = page.title;
    setTimeout(goOn, GROUP_MS);
  } catch {
    note.hidden = false;
    setTimeout(goOn, AGAIN_MS);
  }
}

setTimeout(goOn, GROUP_MS);
