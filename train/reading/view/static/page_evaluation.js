// An evaluation: forest plot, tables, and every attempt question by question.

import { address, ask } from "./api.js";
import { figure, fill, h, table } from "./dom.js";
import { kept } from "./kept.js";
import { LongList } from "./virtual.js";

const KINDS = { k: "correct", w: "wrong", t: "truncated, so wrong", f: "failed" };

export async function show({ root, params, signal, is }) {
  const run = params.get("run");
  const { runs } = await ask("runs", {}, signal);
  const { evaluated } = runs.find((one) => one.name === run) ?? { evaluated: [] };
  if (!evaluated.length) return fill(root, h("h1", {}, "Evaluations"), h("p", {}, `${run} has no finished evaluation.`)), { title: run };
  const step = params.get("step") ?? evaluated.at(-1);
  const told = await ask("evaluation", { run, step }, signal);
  if (!is()) return null;
  const set = params.get("set") ?? told.sets[0];
  const others = kept ? [] : comparable(runs, run, step);
  const box = h("div", { class: "grid rows", tabindex: "0", role: "region", "aria-label": `questions of ${set}` });
  const choice = (label, names, value, key) => names.length > 1 && h("label", {}, `${label}: `, h("select", {
    onchange: (event) => { location.hash = address("evaluation", { run, step, set, [key]: event.target.value, ...(key === "step" ? { set: "" } : {}) }); },
  }, names.map((name) => h("option", { value: name, selected: name === value }, name))));
  const against = h("select", {}, others.map((one) => h("option", { value: `${one.run}:${one.step}` }, `${one.run}, step ${one.step}`)));
  fill(root,
    h("h1", {}, "Evaluation ", h("span", { class: "soft" }, `${run}, step ${step}`)),
    h("p", { class: "links" }, choice("step", evaluated, step, "step"), choice("set", told.sets, set, "set"),
      others.length > 0 && h("label", {}, "compare with: ", against), others.length > 0 && h("button", {
        onclick: () => { location.hash = address("paired", { a: against.value, b: `${run}:${step}` }); } }, "compare")),
    h("div", { class: "charts" }, figure(told.forest)),
    told.tables.map((one) => [h("h3", {}, one.title), table(one.head, one.rows, one.title), one.note && h("p", { class: "soft small" }, one.note)]),
    h("h2", {}, `Every attempt of ${set}`),
    h("ul", { class: "legend cellkey" }, Object.entries(KINDS).map(([code, text]) => h("li", {}, h("i", { class: code }), text))),
    box);
  const { questions } = await ask("grid", { run, step, set }, signal);
  if (!is()) return null;
  const collection = `${step}:${set}`;
  const list = new LongList(box, { count: questions.length, height: 28, varies: true, render: (i) => question(questions[i], run, collection, set) });
  box.classList.toggle("short", questions.length < 12);
  return { title: `${run}, evaluation at step ${step}`, end: () => list.end() };
}

function question(one, run, of, set) {
  return h("div", { class: "question" }, h("span", { class: "id" }, one.id), h("span", { class: "n" }, `${one.correct}/${one.scored}`),
    h("span", { class: "cells" }, [...one.cells].slice(0, 256).map((code, k) => h("a", {
      class: code, href: address("trajectory", { run, of, file: set, row: one.row + k }), title: `attempt ${k}: ${KINDS[code]}`,
      "aria-label": `attempt ${k}: ${KINDS[code]}`,
    }))));
}

// The other evaluations, those of the same run first.
function comparable(runs, run, step) {
  const found = runs.flatMap((one) => one.evaluated.map((at) => ({ run: one.name, step: at })));
  const others = found.filter((one) => one.run !== run || one.step !== step);
  return [...others.filter((one) => one.run === run), ...others.filter((one) => one.run !== run)];
}
