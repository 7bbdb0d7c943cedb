// All runs: sorted, filtered and tagged; chosen ones are compared.

import { address, ask } from "./api.js";
import { sparkline } from "./chart.js";
import { chip, copyButton, dateTime, duration, fill, h, number, stateChip } from "./dom.js";

const COLUMNS = {
  name: ["run", (run) => run.name], date: ["started", (run) => run.date], model: ["model", (run) => run.model], recipe: ["recipe", (run) => run.recipe],
  steps: ["steps", (run) => run.steps], reward: ["reward", (run) => run.reward ?? -Infinity], evaluation: ["evaluation", (run) => run.evaluation?.value ?? -Infinity],
  wall: ["wall time", (run) => run.wall_s ?? -1], status: ["state", (run) => run.status], tags: ["tags", (run) => tagsOf(run).join(" ")],
};
const NUMERIC = new Set(["steps", "reward"]);
const LISTS = { training: "", evaluation: "Evaluations", recording: "Recorded chats, served conversations and rollouts" };

export async function show({ root, params, signal, is }) {
  const chosen = new Set(), lists = h("div"), problem = h("p", { class: "bad" });
  let sort = params.get("sort") ?? "-date", runs = [];
  const filter = h("input", { type: "search", placeholder: "filter: name, model, recipe, state, tag", "aria-label": "filter runs", value: params.get("filter") ?? "", oninput: () => render() });
  const compare = h("button", { onclick: () => { location.hash = address("overlay", { run: [...chosen] }); } });
  const remove = h("button", { onclick: () => openDelete(runs.filter((run) => chosen.has(run.name))) }, "delete …");
  const mark = () => {
    compare.disabled = chosen.size < 2;
    compare.textContent = chosen.size < 2 ? "compare: choose two or more" : `compare ${chosen.size} runs`;
    remove.hidden = !chosen.size;
  };
  const setSort = (by) => { sort = sort === by ? `-${by}` : sort === `-${by}` ? by : NUMERIC.has(by) || by === "date" || by === "evaluation" ? `-${by}` : by; render(); };
  const render = () => {
    const by = sort.replace(/^-/, ""), sign = sort.startsWith("-") ? -1 : 1, key = (COLUMNS[by] ?? COLUMNS.date)[1];
    const parts = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) => [run.name, run.model, run.recipe, run.status, run.path, ...tagsOf(run)].join(" ").toLowerCase();
    const found = runs.filter((run) => parts.every((part) => text(run).includes(part)))
      .sort((a, b) => sign * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) || a.name.localeCompare(b.name));
    fill(lists, Object.keys(LISTS).map((kind) => listOf(kind, found.filter((run) => run.kind === kind), { sort, setSort, chosen, mark, render })),
      !found.length && h("p", { class: "soft" }, runs.length ? "No run matches the filter." : "There are no runs yet."));
    history.replaceState(null, "", address("runs", { sort: sort === "-date" ? "" : sort, filter: filter.value }));
    mark();
  };
  const update = async () => {
    const answer = await ask("runs", {}, signal);
    if (!is()) return;
    runs = answer.runs;
    problem.textContent = runs.map((run) => run.problem).filter(Boolean).join("; ");
    const focused = lists.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
    render();
    if (focused) [...lists.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focused)?.focus();
  };
  fill(root, h("h1", {}, "Runs"), h("div", { class: "toolbar" }, filter, compare, remove), problem, lists);
  await update();
  return { title: "runs", changed: update };
}

function listOf(kind, runs, list) {
  if (!runs.length) return null;
  const columns = Object.keys(COLUMNS).filter((one) => kind === "training" || !["steps", "reward", "wall", "evaluation"].includes(one));
  const head = (one) => {
    const [title] = COLUMNS[one], is = list.sort.replace(/^-/, "") === one, down = list.sort.startsWith("-");
    return h("th", { scope: "col", class: `c-${one} ${NUMERIC.has(one) ? "n" : ""}`, "aria-sort": is ? down ? "descending" : "ascending" : undefined },
      h("button", { class: "plain", "aria-label": `sort ${kind} by ${title}`, onclick: () => list.setSort(one) }, title, is && (down ? " ↓" : " ↑")));
  };
  return [LISTS[kind] && h("h2", {}, LISTS[kind]), h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": LISTS[kind] || "runs" }, h("table", { class: "runs" },
    h("thead", {}, h("tr", {}, kind === "training" && h("th", { scope: "col" }, h("span", { class: "hidden" }, "choose")), columns.map(head))),
    h("tbody", {}, runs.map((run) => row(run, kind, columns, list)))))];
}

function row(run, kind, columns, { chosen, mark, render }) {
  const e = run.evaluation, box = h("input", {
    type: "checkbox", "aria-label": `choose ${run.name}`, checked: chosen.has(run.name),
    onchange: () => { if (box.checked) chosen.add(run.name); else chosen.delete(run.name); mark(); },
  });
  const page = kind === "evaluation" ? "evaluation" : kind === "recording" ? "list" : "run";
  const cells = {
    name: () => h("a", { href: address(page, { run: run.name }), title: run.path }, run.name), date: () => dateTime(run.date),
    model: () => h("span", { title: run.model }, run.model.split("/").at(-1) || "–"), recipe: () => run.recipe || "–", steps: () => number(run.steps),
    reward: () => h("span", { class: "sparked" }, sparkline(run.curve), number(run.reward)),
    evaluation: () => e ? [`${e.set} `, h("b", {}, number(e.value)), e.low !== null && h("span", { class: "soft" }, ` [${number(e.low)}, ${number(e.high)}]`)] : "–",
    wall: () => duration(run.wall_s), status: () => stateChip(run.status), tags: () => tagsCell(run, render),
  };
  return h("tr", {}, kind === "training" && h("td", {}, box), columns.map((one) => h("td", { class: `c-${one} ${NUMERIC.has(one) ? "n" : ""}` }, cells[one]())));
}

// Tags are kept by the browser: the server of this page writes nothing.
function tagsOf(run) {
  try { return JSON.parse(localStorage.getItem(`tags ${run.path}`) ?? "[]"); } catch { return []; }
}

function setTags(run, tags) {
  try { localStorage.setItem(`tags ${run.path}`, JSON.stringify([...new Set(tags)])); } catch { /* a browser may forbid it */ }
}

function tagsCell(run, render) {
  const field = h("input", { class: "tag", "aria-label": `add a tag to ${run.name}`, placeholder: "+ tag", size: 5, onkeydown: (event) => {
    if (event.key !== "Enter" || !field.value.trim()) return;
    setTags(run, [...tagsOf(run), field.value.trim()]);
    render();
  } });
  return h("span", { class: "tags" }, tagsOf(run).map((tag) => h("button", { class: "chip accent", title: "remove this tag", "aria-label": `remove the tag ${tag} of ${run.name}`,
    onclick: () => { setTags(run, tagsOf(run).filter((one) => one !== tag)); render(); } }, `${tag} ×`)), field);
}

// The server of this page writes nothing, so a run is deleted by a command. A running one is left out.
function openDelete(runs) {
  const running = runs.filter((run) => run.status === "running"), others = runs.filter((run) => run.status !== "running");
  const command = `rm -r -- ${others.map((run) => `'${run.path.replaceAll("'", "'\\''")}'`).join(" ")}`;
  const dialog = h("dialog", { "aria-label": "delete runs", onclose: () => dialog.remove() },
    h("h2", {}, `Delete ${others.length === 1 ? others[0].name : `${others.length} runs`}?`),
    running.length > 0 && h("p", { class: "bad" }, `${running.map((run) => run.name).join(", ")}: running, so not deleted. Stop it first.`),
    others.length > 0 && [h("p", {}, "This page cannot write. Run this command on the machine that has the runs; it cannot be undone."),
      h("pre", {}, command), h("p", {}, copyButton(command, "copy the command"))],
    h("button", { onclick: () => dialog.close() }, "close"));
  document.body.append(dialog);
  dialog.showModal();
}
