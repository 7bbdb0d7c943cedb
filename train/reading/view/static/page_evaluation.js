// An evaluation: scores, and every attempt question by question.

import { address, ask } from "./api.js";
import { figure, fill, h, table } from "./dom.js";
import { has, kept } from "./kept.js";
import { KINDS, QuestionRows, cells, givenAnswers, questionCells } from "./questions.js";

export async function show({ root, params, signal, is }) {
  const run = params.get("run");
  const { runs } = await ask("runs", {}, signal);
  const evaluated = (runs.find((one) => one.name === run)?.evaluated ?? []).filter((step) => has("evaluation", { run, step }));
  if (!evaluated.length) return fill(root, h("h1", {}, "Evaluations"), h("p", {}, `${run} has no finished evaluation.`)), { title: run };
  const step = params.get("step") ?? evaluated.at(-1);
  const told = await ask("evaluation", { run, step }, signal);
  if (!is()) return null;
  const set = params.get("set") ?? told.sets[0];
  const others = kept ? [] : comparable(runs, run, step);
  const choice = (label, names, value, key) => names.length > 1 && h("label", {}, `${label}: `, h("select", {
    onchange: (event) => { location.hash = address("evaluation", { run, step, set, [key]: event.target.value, ...(key === "step" ? { set: "" } : {}) }); },
  }, names.map((name) => h("option", { value: name, selected: name === value }, name))));
  const against = h("select", {}, others.map((one) => h("option", { value: `${one.run}:${one.step}` }, `${one.run}, step ${one.step}`)));
  const ofSet = h("div", {});
  fill(root,
    h("h1", {}, "Evaluation ", h("span", { class: "soft" }, told.model || `${run}, step ${step}`)),
    h("p", { class: "links" }, choice("step", evaluated, step, "step"), choice("set", told.sets, set, "set"),
      others.length > 0 && h("label", {}, "compare with: ", against), others.length > 0 && h("button", {
        onclick: () => { location.hash = address("paired", { run, a: against.value, b: `${run}:${step}` }); } }, "compare")),
    told.problem && h("p", { class: "bad" }, told.problem),
    h("div", { class: "charts" }, figure(told.forest)),
    ofSet,
    told.tables.map((one) => [h("h3", {}, one.title), table(one.head, one.rows, one.title), one.note && h("p", { class: "soft small" }, one.note)]),
    h("h2", {}, "How it was made"),
    h("dl", { class: "facts" }, Object.entries(told.facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    told.command && h("pre", {}, told.command),
    told.manifest && h("details", { class: "fold" }, h("summary", {}, "manifest.json, its last start"), h("pre", {}, told.manifest)));
  const grid = await ask("grid", { run, step, set }, signal);
  if (!is()) return null;
  const list = showSet(ofSet, grid, { run, of: `${step}:${set}`, file: set }, told.settings[set], params);
  return { title: `${run}, evaluation at step ${step}`, end: () => list.end() };
}

// The questions of a set with their attempts; `place` is the set's file.
function showSet(root, { set, questions, figures, notes }, place, settings, params) {
  fill(root, h("h2", {}, `Questions of ${set}`), notes.map((note) => h("p", { class: "soft" }, note)),
    has("list", { run: place.run, of: place.of }) && h("p", { class: "links" }, h("a", { href: address("list", { run: place.run, of: place.of }) }, kept ? "attempts to read" : "all attempts"),
      kept && h("span", { class: "soft small" }, "A ring marks an attempt that this file has; the others are lines of attempts/ in the folder.")),
    h("ul", { class: "legend cellkey" }, Object.entries(KINDS).map(([code, text]) => h("li", {}, h("i", { class: code }), text))));
  const rows = new QuestionRows(root, {
    rows: questions, textOf: (one) => `${one.question ?? ""} ${one.id}`, label: `questions of ${set}, the hardest first`, params, page: "evaluation",
    filters: [["all", "all", () => true], ["never", "never solved", (one) => one.scored && !one.correct],
      ["sometimes", "sometimes", (one) => one.correct && one.correct < one.scored], ["always", "always", (one) => one.scored && one.correct === one.scored]],
    render: (one) => h("div", { class: "question" }, h("div", {}, questionCells(one)),
      h("div", { class: "small" }, h("span", { class: "soft" }, "given "), givenAnswers(one)), cells(one, place), h("span", { class: "n" }, `${one.correct}/${one.scored}`)),
  });
  root.append(...[figures.length > 0 && h("div", { class: "charts" }, figures.map(figure)), settings && h("p", { class: "soft small" }, settings)].filter(Boolean));
  return rows;
}

// The other evaluations, those of the same run first.
function comparable(runs, run, step) {
  const found = runs.flatMap((one) => one.evaluated.map((at) => ({ run: one.name, step: at })));
  const others = found.filter((one) => one.run !== run || one.step !== step);
  return [...others.filter((one) => one.run === run), ...others.filter((one) => one.run !== run)];
}
