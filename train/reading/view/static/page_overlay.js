// Several runs compared: their results, the fields in which their recipes differ, and their curves.

import { address, ask } from "./api.js";
import { smoothingControl } from "./chart.js";
import { dateTime, dotted, figure, fill, h, number, stateChip, table } from "./dom.js";

const MOST_SHOWN = 20, COLORS = 9;

export async function show({ root, params, signal, is }) {
  const names = params.getAll("run");
  const update = async () => {
    const { runs, charts, differences } = await ask("overlay", { run: names }, signal);
    if (!is()) return;
    const y = scrollY, box = h("div", { class: "charts" }, charts.map(figure));
    fill(root, h("h1", {}, `Comparison of ${runs.length} runs`),
      table(["run", "state", "started", "model", "recipe", "steps", "reward", "evaluation"], runs.map((run, k) => [
        h("span", { class: "nowrap" }, mark(k), h("a", { href: address("run", { run: run.name }) }, run.name)), stateChip(run.status), h("span", { class: "nowrap" }, dateTime(run.date)), run.model || "–", run.recipe || "–",
        number(run.steps), number(run.reward), run.evaluation ? `${run.evaluation.set} ${number(run.evaluation.value)}` : "–"]), "runs", true),
      pairsOf(runs),
      h("h2", {}, "Recipe"), recipesOf(differences),
      h("h2", {}, "Curves"), runs.length > COLORS && h("p", { class: "soft" }, `The charts have the first ${COLORS} runs.`), charts.length ? [h("div", { class: "toolbar" }, smoothingControl(box)), box] : h("p", { class: "soft" }, "These runs have no metrics."));
    scrollTo(0, y);
  };
  await update();
  return { title: names.join(", "), changed: (changed) => names.some((n) => changed.includes(n)) && update() };
}

// The colour of a run in all charts.
function mark(k) {
  const square = h("b", { class: "mark" });
  square.style.background = `var(--c${k % COLORS})`;
  return square;
}

function recipesOf({ runs, fields }) {
  if (runs.length < 2) return h("p", { class: "soft" }, "Fewer than two of these runs have a config.toml.");
  if (!fields.length) return h("p", { class: "soft" }, "No field differs.");
  const some = (rows) => table(["field", ...runs], rows.map(([name, ...values]) => [dotted(name), ...values]), "fields that differ", true);
  return [some(fields.slice(0, MOST_SHOWN)), fields.length > MOST_SHOWN && h("details", { class: "fold" },
    h("summary", {}, `${fields.length - MOST_SHOWN} more fields that differ`), some(fields.slice(MOST_SHOWN)))];
}

// The last evaluations, each against that of the first run.
function pairsOf(runs) {
  const [first, ...others] = runs.filter((run) => run.evaluated.length);
  if (!others.length) return null;
  const at = (run) => `${run.name}:${run.evaluated.at(-1)}`;
  return h("ul", { class: "links" }, others.map((run) => h("li", {}, h("a", { href: address("paired", { a: at(first), b: at(run) }) },
    `evaluation question by question: ${first.name} and ${run.name}`))));
}
