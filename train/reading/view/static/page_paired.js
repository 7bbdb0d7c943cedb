// Two evaluations of the same questions: the difference with its interval, and each question with both answers.

import { address, ask } from "./api.js";
import { fill, h, table } from "./dom.js";
import { QuestionRows, cells, givenAnswers, questionCells } from "./questions.js";

export async function show({ root, params, signal, is }) {
  const [a, b] = [params.get("a"), params.get("b")];
  const told = await ask("paired", { a, b }, signal);
  if (!is()) return null;
  const points = (share) => share === null ? "–" : (100 * share).toFixed(1);
  fill(root,
    h("h1", {}, "Compared ", h("span", { class: "soft" }, `B: ${named(b)}, A: ${named(a)}`)),
    h("p", {}, h("code", { class: "replay" }, told.command)),
    table(["set", "A", "B", "B − A", "95% interval", "p", "p (Holm)", "questions", "detectable"], told.sets.map((one) => [one.set, points(one.mean_a), points(one.mean_b),
      points(one.difference), `[${points(one.interval[0])}, ${points(one.interval[1])}]`, one.p.toPrecision(3), one.p_holm.toPrecision(3),
      one.num_questions, points(Math.min(1, one.detectable))]), "differences"),
    h("p", { class: "soft small" }, "In percentage points; the questions are the sample. Detectable: the smallest true difference that is found with power 0.8."));
  const lists = Object.entries(told.questions).map(([set, { set_b, questions }]) => {
    root.append(h("h2", {}, `Questions of ${set}`));
    const places = { a: placeOf(a, set), b: placeOf(b, set_b) }, rows = questions.map((one) => ({ ...one, by: change(one) }));
    rows.sort((x, y) => Math.abs(y.by) - Math.abs(x.by));
    return new QuestionRows(root, {
      rows, textOf: ({ a: one }) => `${one.question ?? ""} ${one.id}`, label: `questions of ${set}, the largest difference first`, params, page: "paired",
      filters: [["all", "all", () => true], ["better", "B better", (one) => one.by > 0], ["worse", "B worse", (one) => one.by < 0], ["same", "equal", (one) => one.by === 0]],
      render: (one) => pair(one, places),
    });
  });
  return { title: `${b} minus ${a}`, end: () => lists.forEach((list) => list.end()) };
}

function pair({ a, b, by }, places) {
  const side = (name, one, place) => h("div", { class: "side" }, h("b", {}, name), h("span", { class: "n" }, `${one.correct}/${one.scored}`), cells(one, place), givenAnswers(one));
  return h("div", { class: "question of-two" }, h("div", {}, questionCells(a)), side("A", a, places.a), side("B", b, places.b),
    h("span", { class: `n ${by > 0 ? "good" : by < 0 ? "bad" : "soft"}` }, by === 0 ? "0" : `${by > 0 ? "+" : "−"}${Math.abs(100 * by).toFixed(0)}`));
}

// B's share of correct attempts minus A's; 0 where one of them has none that was scored.
function change({ a, b }) {
  return a.scored && b.scored ? b.correct / b.scored - a.correct / a.scored : 0;
}

function placeOf(evaluation, set) {
  const at = evaluation.lastIndexOf(":"), [run, step] = [evaluation.slice(0, at), evaluation.slice(at + 1)];
  return { run, of: `${step}:${set}`, file: set };
}

function named(evaluation) {
  const at = evaluation.lastIndexOf(":");
  return `${evaluation.slice(0, at)}, step ${evaluation.slice(at + 1)}`;
}
