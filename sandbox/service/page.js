"use strict";
const form = document.getElementById("form");
function show(id, text) {
  const place = document.getElementById(id);
  place.textContent = text;
  place.hidden = text === "";
}
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  for (const id of ["stdout", "value", "stderr"]) show(id, "");
  show("status", "running");
  const headers = { "Content-Type": "application/json" };
  if (form.token && form.token.value) headers.Authorization = "Bearer " + form.token.value;
  const body = JSON.stringify({ code: form.code.value, stdin: form.stdin.value });
  try {
    const answer = await fetch("v1/run", { method: "POST", headers, body });
    const result = await answer.json();
    if (!answer.ok) throw new Error(answer.status + ": " + result.error.message);
    show("status", result.status + " after " + result.wall_s.toFixed(3) + " s");
    show("stdout", result.stdout);
    show("value", result.value === null ? "" : result.value);
    show("stderr", result.stderr);
  } catch (error) {
    show("status", String(error.message));
  }
});
