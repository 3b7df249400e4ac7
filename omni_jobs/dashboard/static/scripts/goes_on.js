// An action on many jobs that goes on by itself, a group with each page, until the page is left.

const form = document.querySelector("form[data-goes-on]");
if (form) setTimeout(() => form.requestSubmit(), 300);  // time enough to press "Stop here"
