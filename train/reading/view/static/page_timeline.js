// A step on one clock: who waited when. The trajectories that ended last, each on a lane, and what all spent.

import { address, ask } from "./api.js";
import { chip, figure, fill, h, number, seconds, STYLE_OF, table } from "./dom.js";

const PARTS = [["policy", "policy", 0], ["tools", "tools", 2], ["rest", "judge, and between them", 7]];

export async function show({ root, params, signal, is }) {
  const run = params.get("run"), step = params.get("step");
  const told = await ask("timeline", { run, step }, signal);
  if (!is()) return null;
  const at = (one) => address("timeline", { run, step: one });
  fill(root,
    h("h1", {}, `Step ${told.step}`, h("span", { class: "soft" }, " who waited when")),
    h("p", { class: "links" }, told.before !== null && h("a", { href: at(told.before) }, `← step ${told.before}`),
      told.after !== null && h("a", { href: at(told.after) }, `step ${told.after} →`),
      h("a", { href: address("list", { run, filter: `step=${told.step}`, sort: "-seconds" }) }, "its trajectories, the longest first")),
    !told.drawing && h("p", { class: "soft" }, "The records of this step have no times: they were written before there were any."),
    told.sums && spent(told.sums),
    told.drawing && h("div", { class: "charts" }, figure(told.drawing)),
    told.rows.length > 0 && table(["trajectory", "verdict", "began", "took", "policy", "tools", "tokens", "calls"], told.rows.map((row) => [
      h("a", { href: address("trajectory", { run, file: row.file, row: row.row }) }, `${row.name} #${row.sibling}`),
      chip(row.verdict, STYLE_OF[row.verdict]), `+${seconds(row.began_s)}`, seconds(row.seconds), seconds(row.writing_s), seconds(row.tools_s),
      number(row.tokens), number(row.calls)]), "trajectories that ended last"));
  const go = (one) => () => { if (one !== null) location.hash = at(one); };
  return { title: `${run}, step ${told.step}, times`, keys: { "[": go(told.before), "]": go(told.after) } };
}

function spent(sums) {
  const bar = h("div", { class: "sharebar" }), names = h("ul", { class: "legend" });
  for (const [key, name, color] of PARTS) {
    const percent = sums.seconds ? 100 * sums[key] / sums.seconds : 0, piece = bar.appendChild(h("i", { title: name })), mark = h("b");
    piece.style.width = `${percent}%`;
    piece.style.background = mark.style.background = `var(--c${color})`;
    names.append(h("li", {}, mark, `${name} ${percent.toFixed(0)}%`));
  }
  return [h("p", {}, `${number(sums.trajectories)} trajectories in ${seconds(sums.whole_s)}, ${seconds(sums.seconds / sums.trajectories)} each. Of their time:`), bar, names];
}
