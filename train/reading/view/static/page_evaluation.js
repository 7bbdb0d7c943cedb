// An evaluation: scores, and every attempt question by question.

import { address, ask } from "./api.js";
import { figure, fill, h, table } from "./dom.js";
import { has, kept } from "./kept.js";
import { LongList } from "./virtual.js";

const KINDS = { k: "correct", w: "wrong", t: "truncated, so wrong", f: "failed" };

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
        onclick: () => { location.hash = address("paired", { a: against.value, b: `${run}:${step}` }); } }, "compare")),
    told.problem && h("p", { class: "bad" }, told.problem),
    h("dl", { class: "facts" }, Object.entries(told.facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("div", { class: "charts" }, figure(told.forest)),
    told.tables.map((one) => [h("h3", {}, one.title), table(one.head, one.rows, one.title), one.note && h("p", { class: "soft small" }, one.note)]),
    ofSet,
    (told.command || told.manifest) && h("h2", {}, "How to repeat it"), told.command && h("pre", {}, told.command),
    told.manifest && h("details", { class: "fold" }, h("summary", {}, "manifest.json, its last start"), h("pre", {}, told.manifest)));
  const grid = await ask("grid", { run, step, set }, signal);
  if (!is()) return null;
  const list = showSet(ofSet, grid, { run, of: `${step}:${set}`, file: set }, told.settings[set]);
  return { title: `${run}, evaluation at step ${step}`, end: () => list.end() };
}

// The attempts at a set; `place` is the set's file.
function showSet(root, { set, questions, figures, hardest, notes }, place, settings) {
  const box = h("div", { class: "grid rows", tabindex: "0", role: "region", "aria-label": `questions of ${set}` });
  const count = (test) => questions.filter((one) => one.scored && test(one)).length;
  fill(root, h("h2", {}, `Every attempt of ${set}`), settings && h("p", { class: "soft small" }, settings),
    notes.map((note) => h("p", { class: "soft" }, note)),
    figures.length > 0 && h("div", { class: "charts" }, figures.map(figure)),
    h("p", { class: "soft small" }, `The hardest questions first. Never solved: ${count((one) => !one.correct)}, sometimes: `
      + `${count((one) => one.correct && one.correct < one.scored)}, always: ${count((one) => one.correct === one.scored)}.`
      + (kept ? " A ring marks an attempt that this file has; another one is a line of attempts/ in its folder." : "")),
    kept && has("list", { run: place.run, of: place.of }) && h("p", {}, h("a", { href: address("list", { run: place.run, of: place.of }) }, "attempts to read")),
    h("ul", { class: "legend cellkey" }, Object.entries(KINDS).map(([code, text]) => h("li", {}, h("i", { class: code }), text))),
    box,
    hardest.length > 0 && [h("h3", {}, "The hardest questions"), h("ol", { class: "hardest" }, hardest.map((one) => h("li", {},
      h("b", {}, one.id), " ", h("span", { class: "soft" }, one.detail), h("pre", {}, one.question),
      h("div", { class: "soft small" }, `expected: ${one.answer}`))))]);
  box.classList.toggle("short", questions.length < 12);
  return new LongList(box, { count: questions.length, height: 28, varies: true, render: (i) => question(questions[i], place) });
}

function question(one, place) {
  return h("div", { class: "question" }, h("span", { class: "id" }, one.id), h("span", { class: "n" }, `${one.correct}/${one.scored}`),
    h("span", { class: "cells" }, [...one.cells].slice(0, 256).map((code, k) => cell(code, k, { ...place, row: one.row + k }))));
}

function cell(code, k, at) {
  const text = `attempt ${k}: ${KINDS[code]}; line ${at.row + 1} of ${at.file}.jsonl`;
  if (!has("conversation", at)) return h("span", { class: code, role: "img", title: text, "aria-label": text });
  return h("a", { class: `${code} ${kept ? "kept" : ""}`, href: address("trajectory", at), title: text, "aria-label": text });
}

// The other evaluations, those of the same run first.
function comparable(runs, run, step) {
  const found = runs.flatMap((one) => one.evaluated.map((at) => ({ run: one.name, step: at })));
  const others = found.filter((one) => one.run !== run || one.step !== step);
  return [...others.filter((one) => one.run === run), ...others.filter((one) => one.run !== run)];
}
