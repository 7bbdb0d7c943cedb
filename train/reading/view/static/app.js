// Which page an address shows, the bar above it, keys, and news of the runs.

import { address, current, listen } from "./api.js";
import { clearViews } from "./chart.js";
import { fill, h, say } from "./dom.js";
import { openHelp } from "./help.js";
import { has, isAnswered, kept } from "./kept.js";
import * as article from "./page_article.js";
import * as evaluation from "./page_evaluation.js";
import * as group from "./page_group.js";
import * as list from "./page_list.js";
import * as overlay from "./page_overlay.js";
import * as paired from "./page_paired.js";
import * as run from "./page_run.js";
import * as runs from "./page_runs.js";
import * as task from "./page_task.js";
import * as trajectory from "./page_trajectory.js";

const PAGES = { article, runs, run, list, trajectory, group, task, evaluation, paired, overlay };
const HOME = kept?.home ?? "run"; // the page of a run itself
const main = document.getElementById("main");
const news = new Set();
main.dataset.updates = 0;
let shown = null, shownPlace = "", turn = 0, connected = true, updating = false;

// Ends the page: its requests, its listeners, which it adds with its signal, and what it opened over others.
function leave(page, params) {
  shown?.end();
  shown = null;
  for (const dialog of document.querySelectorAll("dialog")) dialog.remove();
  const place = `${page} ${params.getAll("run")}`;
  if (place === shownPlace) return; // another tab of the same run
  shownPlace = place;
  clearViews();
  scrollTo(0, 0);
}

async function show() {
  const { page, params } = current(), mine = ++turn;
  leave(page, params);
  bar(page, params);
  const module = PAGES[page];
  if (!module) return fill(main, h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: "#/" }, kept ? "Back" : "All runs")));
  const root = h("div", { class: `page ${page}` });
  const stopping = new AbortController();
  const context = { root, params, signal: stopping.signal, is: () => mine === turn };
  fill(main, root);
  main.setAttribute("aria-busy", "true");
  try {
    const made = (await module.show(context)) ?? {};
    if (mine !== turn) return made.end?.();
    shown = { ...made, end: () => { stopping.abort(); made.end?.(); } };
    document.title = `${made.title ?? "runs"} · rocstar view`;
    update([]);
  } catch (error) {
    if (error.name === "AbortError" || mine !== turn) return;
    fill(root, h("h1", {}, "This cannot be shown"), h("p", { class: "bad" }, error.message),
      h("p", {}, h("a", { href: "#/" }, kept ? "Back" : "All runs")));
  } finally {
    if (mine === turn) main.removeAttribute("aria-busy");
  }
}

// Tells the page what changed. One update is under way at most, and what comes meanwhile waits by name: a page
// that is slower than its run is behind, and no longer behind the longer it is open.
async function update(names) {
  for (const name of names) news.add(name);
  if (updating) return;
  updating = true;
  let number = 0;
  while (news.size && shown) {
    number++;
    const told = [...news];
    news.clear();
    try {
      await shown.changed?.(told);
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
  }
  updating = false;
  if (number) main.dataset.updates = Number(main.dataset.updates) + number; // all that is known is shown
}

function bar(page, params) {
  // The runs that a page is about: a comparison is about several.
  const names = page === "paired" ? ["a", "b"].map((side) => (params.get(side) ?? "").replace(/:[^:]*$/, "")) : params.getAll("run");
  const [name] = names, alone = names.length === 1;
  const link = (text, href, there) => h("a", { href, "aria-current": there ? "page" : undefined }, text);
  fill(document.getElementById("bar"),
    h("nav", { "aria-label": "pages" },
      !kept && link("Runs", "#/", page === "runs"),
      [...new Set(names)].map((one) => link(one, address(HOME, { run: one }), alone && page === HOME)),
      alone && has("list", { run: name }) && link("Trajectories", address("list", { run: name }), page === "list"),
      alone && HOME !== "evaluation" && isAnswered("evaluation") && link("Evaluations", address("evaluation", { run: name }), page === "evaluation"),
      !alone && names.length > 0 && link("Comparison", location.hash, true)),
    h("span", { class: "right" },
      kept ? h("span", { id: "live", class: "soft" }, `exported ${kept.made}`)
        : h("span", { id: "live", class: connected ? "soft" : "bad" }, connected ? "live" : "not connected"),
      h("button", { onclick: changeTheme, "aria-label": "dark or light" }, "◐"),
      h("button", { onclick: openHelp, "aria-label": "keys" }, "?")));
}

function changeTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* a browser may forbid to keep it */ }
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing) return;
  const run = current().params.get("run");
  const common = {
    "?": openHelp,
    "r": () => { location.hash = "#/"; },
    "o": () => { if (run) location.hash = address(HOME, { run }); },
    "t": () => { if (run) location.hash = address("list", { run }); },
    "e": () => { if (run) location.hash = address("evaluation", { run }); },
    "/": () => document.querySelector("input[type=search]")?.focus(),
  };
  const action = shown?.keys?.[event.key] ?? common[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

try {
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* a browser may forbid to keep it */ }
addEventListener("hashchange", () => {
  if (!location.hash || location.hash.startsWith("#/")) show(); // else it leads to a place of this page
});
addEventListener("keydown", keys);
listen(update, (is) => {
  connected = is;
  const live = document.getElementById("live");
  live.className = is ? "soft" : "bad";
  live.textContent = is ? "live" : "not connected";
  if (!is) say("the server does not answer");
});
show();
