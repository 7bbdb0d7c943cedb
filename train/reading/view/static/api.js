// Questions to the server, or to the file that has the page. A mistake is an Error whose message a person
// can read.

import { kept, keptAnswer } from "./kept.js";

export async function ask(path, params = {}, signal = undefined) {
  const query = queryOf(params);
  if (kept) return keptAnswer(path, [...query]);
  const answer = await fetch(`api/${path}?${query}`, { signal });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error ?? `the server answered ${answer.status}`);
  return told;
}

function queryOf(params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, one);
  }
  return query;
}

// Addresses of pages: #/NAME?a=b. The same address shows the same page.
export function address(page, params = {}) {
  const text = queryOf(params).toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

// A page that was exported begins where its file says, and has no list of runs. "#main" is a place of a page.
export function current() {
  const hash = location.hash.startsWith("#/") && location.hash !== "#/" ? location.hash : kept?.start ?? "#/";
  const [path, query = ""] = hash.slice(2).split("?", 2);
  return { page: path || "runs", params: new URLSearchParams(query) };
}

// Tells `changed` the names of runs that have more to show, while this page is seen. One connection, and an
// event only when something changed.
export function listen(changed, state) {
  if (kept) return;
  let source = null;
  const open = () => {
    if (document.hidden || source) return;
    source = new EventSource("events");
    source.onopen = () => state(true);
    source.onerror = () => state(false);
    source.onmessage = (event) => changed(Object.keys(JSON.parse(event.data)));
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return open();
    source?.close();
    source = null;
  });
  open();
}
