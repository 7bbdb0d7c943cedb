// Two evaluations of the same questions: the difference with its interval, and where it comes from.

import { ask } from "./api.js";
import { fill, h, table } from "./dom.js";

export async function show({ root, params, signal, is }) {
  const [a, b] = [params.get("a"), params.get("b")];
  const told = await ask("paired", { a, b }, signal);
  if (!is()) return null;
  const points = (share) => share === null ? "–" : (100 * share).toFixed(1);
  fill(root,
    h("h1", {}, "Compared ", h("span", { class: "soft" }, `${b} minus ${a}`)),
    h("p", {}, h("code", { class: "replay" }, told.command)),
    table(["set", "A", "B", "B − A", "95% interval", "p", "p (Holm)", "questions", "detectable"], told.sets.map((one) => [one.set, points(one.mean_a), points(one.mean_b),
      points(one.difference), `[${points(one.interval[0])}, ${points(one.interval[1])}]`, one.p.toPrecision(3), one.p_holm.toPrecision(3),
      one.num_questions, points(Math.min(1, one.detectable))]), "differences"),
    h("p", { class: "soft small" }, "In points of 100, over questions as a sample of such questions. Detectable: a true difference of this size is found 4 times in 5."),
    Object.entries(told.questions).map(([set, questions]) => [h("h2", {}, `Questions of ${set}`), differences(questions)]));
  return { title: `${b} minus ${a}` };
}

// A line for each question that changed, from A's share of correct attempts to B's; the largest change first.
function differences(questions) {
  const known = questions.filter((one) => one.a !== null && one.b !== null && one.a !== one.b);
  known.sort((x, y) => Math.abs(y.b - y.a) - Math.abs(x.b - x.a));
  const same = questions.length - known.length;
  return [h("p", { class: "soft" }, `${known.filter((one) => one.b > one.a).length} better in B, ${known.filter((one) => one.b < one.a).length} worse, ${same} alike`),
    h("div", { class: "differences" }, known.slice(0, 200).map((one) => {
      const low = Math.min(one.a, one.b), bar = h("i", { class: one.b > one.a ? "up" : "down" });
      bar.style.left = `${100 * low}%`;
      bar.style.width = `${100 * Math.abs(one.b - one.a)}%`;
      return h("div", { class: "difference" }, h("span", { class: "id" }, one.id),
        h("span", { class: "track", role: "img", "aria-label": `from ${one.a.toFixed(2)} to ${one.b.toFixed(2)}` }, bar),
        h("span", { class: "n" }, `${one.a.toFixed(2)} → ${one.b.toFixed(2)}`));
    }))];
}
