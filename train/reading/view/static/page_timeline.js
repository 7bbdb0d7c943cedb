// The timeline of a step: a lane for each of the trajectories that ended last, and the sums of all.

import { address, ask } from "./api.js";
import { figure, fill, h, number, seconds, table } from "./dom.js";
import { answer, heads, legend, questionLink, verdictChip } from "./row_parts.js";

const PARTS = [["policy", "policy", 0], ["tools", "tools", 2], ["rest", "judge and waiting", 7]];

export async function show({ root, params, signal, is }) {
  const run = params.get("run"), step = params.get("step");
  const told = await ask("timeline", { run, step }, signal);
  if (!is()) return null;
  const at = (one) => address("timeline", { run, step: one });
  fill(root,
    h("h1", {}, `Step ${told.step}`, h("span", { class: "soft" }, " timeline")),
    h("p", { class: "links" }, told.before !== null && h("a", { href: at(told.before) }, `← step ${told.before}`),
      told.after !== null && h("a", { href: at(told.after) }, `step ${told.after} →`),
      h("a", { href: address("list", { run, filter: `step=${told.step}`, sort: "-seconds" }) }, "its trajectories, the longest first")),
    !told.drawing && h("p", { class: "soft" }, "The records of this step have no times: an earlier version wrote them."),
    told.sums && spent(told.sums),
    told.drawing && h("div", { class: "charts" }, figure(told.drawing)),
    told.rows.length > 0 && [table([...heads(["question", "verdict", "given"]), "began", "took", "policy", "tools", ...heads(["tokens", "calls"])], told.rows.map((row) => [
      questionLink(row, address("trajectory", { run, file: row.file, row: row.row }), h("span", { class: "soft" }, ` #${row.sibling}`)),
      verdictChip(row), answer(row.given, row.verdict), `+${seconds(row.began_s)}`, seconds(row.seconds), seconds(row.writing_s), seconds(row.tools_s),
      number(row.tokens), number(row.calls)]), "trajectories that ended last"), legend(["question", "given", "tokens", "calls"])]);
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
