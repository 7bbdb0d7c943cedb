// One run: headline, curves, where the time went, what the learner saw, how groups came out.

import { address, ask } from "./api.js";
import { chip, figure, fill, h, number, STYLE_OF, table, words } from "./dom.js";
import { has, kept } from "./kept.js";

export async function show({ root, params, signal, is }) {
  const name = params.get("run");
  const update = async () => {
    const run = await ask("run", { run: name }, signal);
    const listed = (question) => run.trajectories ? ask(question, { run: name }, signal).catch(() => null) : null;
    const [groups, families, alarms, read] = await Promise.all([listed("groups"), listed("families"),
      run.steps && has("alarms", { run: name }) ? ask("alarms", { run: name }, signal).catch((error) => ({ problem: error.message })) : null,
      kept ? listed("list") : null]);
    if (!is()) return;
    const y = scrollY;
    fill(root,
      h("h1", {}, run.name),
      h("p", { class: "soft path" }, run.path, run.status && ` (${run.status})`),
      run.problem && h("p", { class: "bad" }, run.problem),
      run.growing && h("p", { class: "soft", id: "growing" },
        `step ${run.growing.step} is being rolled out: ${(run.growing.bytes / 1e6).toFixed(1)} MB of trajectories so far`),
      h("div", { class: "tiles" }, run.tiles.map((tile) => h("div", { class: "tile" },
        h("div", { class: "name" }, tile.name), h("div", { class: "value" }, tile.value),
        h("div", { class: "detail" }, tile.detail)))),
      h("ul", { class: "links" },
        run.trajectories && h("li", {}, h("a", { href: address("list", { run: name }) }, "trajectories")),
        run.trajectories && !kept && h("li", {}, h("a", { href: `export?${new URLSearchParams({ run: name })}` }, "this run as one file")),
        groups && has("timeline", { run: name, step: groups.step }) && h("li", {}, h("a", { href: address("timeline", { run: name, step: groups.step }) }, "who waited when")),
        run.evaluated.filter((step) => has("evaluation", { run: name, step })).map((step) => h("li", {},
          h("a", { href: address("evaluation", { run: name, step }) }, `evaluation at step ${step}`)))),
      whatStands(name, alarms),
      shares(run.time),
      h("h2", {}, "Curves"),
      h("div", { class: "charts" }, run.charts.map(figure), groups && figure(groups.drawing), families?.drawing && figure(families.drawing)),
      byFamily(name, families?.families ?? []),
      toRead(name, read),
      run.numbers.length > 0 && fold("All numbers", "every metric in the first and in the last step, or evaluation, that could have it, and what it means",
        table(["metric", "first", "last", "unit", "meaning"], run.numbers, "all numbers", true)),
      run.recipe && fold("Recipe", "config.toml, as resolved", h("pre", {}, run.recipe)),
      run.starts.length > 0 && h("footer", {}, run.starts.map((start) => h("p", {}, start))));
    scrollTo(0, y);
  };
  await update();
  return { title: name, changed: (names) => names.includes(name) && update() };
}

const KIND_STYLE = { liveness: "bad", health: "bad", advice: "quiet" };

// What `rocstar doctor` says: alarms that stand with what shows them, those that are over in one line.
function whatStands(run, found) {
  if (!found) return null;
  if (found.problem) return h("p", { class: "soft", id: "alarms" }, `No alarms are known: ${found.problem}`);
  const state = found.state.told && h("p", { class: "bad" }, `${words(found.state.name)}: ${found.state.told}`);
  return [h("h2", {}, "What stands"), h("div", { id: "alarms" }, state,
    !found.standing.length && h("p", { class: "soft" }, "No alarm stands."),
    found.standing.map((one) => alarm(run, one)),
    found.over.length > 0 && h("details", { class: "fold" }, h("summary", {}, `over: ${found.over.map((one) => words(one.alarm)).join(", ")}`),
      found.over.map((one) => alarm(run, one))))];
}

function alarm(run, one) {
  const steps = one.first_step === one.last_step ? `step ${one.first_step}` : `steps ${one.first_step} to ${one.last_step}`;
  return h("div", { class: "alarm" },
    h("p", {}, chip(one.kind, KIND_STYLE[one.kind]), " ", h("b", {}, words(one.alarm)), h("span", { class: "soft" }, `, ${steps}: `), one.says),
    h("p", { class: "small" }, `Seen: ${one.now || one.seen}.`,
      one.trajectories.length > 0 && [" Shown by ", one.trajectories.map((at, k) => [k > 0 && ", ",
        h("a", { href: address("trajectory", { run, file: at.file, row: at.row }) }, at.id)]), "."]),
    h("p", { class: "small" }, `Do: ${one.todo}`),
    h("details", { class: "fold small" }, h("summary", {}, "definition"), h("p", {}, `${one.definition} (${one.source})`)));
}

function byFamily(run, families) {
  if (families.length < 2) return null;
  const points = (value) => value.toFixed(2);
  return [h("h2", {}, "Task families"), table(["family", "trajectories", "correct", "reward", "first quarter", "last quarter", "tokens"],
    families.map((one) => [h("a", { href: address("list", { run, filter: one.name.includes(" ") ? "" : `family=${one.name}` }) }, one.name), number(one.trajectories),
      `${(100 * one.correct).toFixed(1)}%`, points(one.reward), points(one.first), points(one.last), number(Math.round(one.tokens))]), "task families")];
}

function fold(title, summary, body) {
  return [h("h2", {}, title), h("details", { class: "fold" }, h("summary", {}, summary), body)];
}

// The trajectories that a file has.
function toRead(run, list) {
  if (!list?.rows.length && !list?.problems.length) return null;
  return [h("h2", {}, `${list.rows.length} trajectories to read`), list.problems.map((problem) => h("p", { class: "soft" }, problem)),
    table(["trajectory", "step", "verdict", "fate", "turns", "calls", "errors", "tokens"], list.rows.map((row) => [
      h("a", { href: address("trajectory", { run, file: row.file, row: row.row }) }, `${row.name} #${row.sibling}`), row.step,
      chip(row.verdict, STYLE_OF[row.verdict]), words(row.bucket), row.turns, row.calls, row.errors, number(row.tokens)]), "trajectories to read")];
}

function shares(parts) {
  if (!parts.length) return null;
  const bar = h("div", { class: "sharebar" }), names = h("ul", { class: "legend" });
  for (const part of parts) {
    const piece = bar.appendChild(h("i", { title: part.name }));
    piece.style.width = `${part.percent}%`;
    piece.style.background = `var(--c${part.color})`;
    const mark = h("b");
    mark.style.background = `var(--c${part.color})`;
    names.append(h("li", {}, mark, `${part.name} ${part.percent}%`));
  }
  return [h("h2", {}, "Where the time went"), bar, names];
}
