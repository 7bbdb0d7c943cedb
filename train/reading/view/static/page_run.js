// One run: headline, curves, where the time went, what the learner saw, how groups came out.

import { address, ask } from "./api.js";
import { figure, fill, h } from "./dom.js";

export async function show({ root, params, signal, is }) {
  const name = params.get("run");
  const update = async () => {
    const run = await ask("run", { run: name }, signal);
    const groups = run.trajectories ? await ask("groups", { run: name }, signal).catch(() => null) : null;
    if (!is()) return;
    const y = scrollY;
    fill(root,
      h("h1", {}, run.name),
      h("p", { class: "soft path" }, run.path),
      run.problem && h("p", { class: "bad" }, run.problem),
      run.growing && h("p", { class: "soft", id: "growing" },
        `step ${run.growing.step} is being rolled out: ${(run.growing.bytes / 1e6).toFixed(1)} MB of trajectories so far`),
      h("div", { class: "tiles" }, run.tiles.map((tile) => h("div", { class: "tile" },
        h("div", { class: "name" }, tile.name), h("div", { class: "value" }, tile.value),
        h("div", { class: "detail" }, tile.detail)))),
      h("ul", { class: "links" },
        run.trajectories && h("li", {}, h("a", { href: address("list", { run: name }) }, "trajectories")),
        run.evaluated.map((step) => h("li", {},
          h("a", { href: address("evaluation", { run: name, step }) }, `evaluation at step ${step}`)))),
      shares(run.time),
      h("h2", {}, "Curves"),
      h("div", { class: "charts" }, run.charts.map(figure), groups && figure(groups.drawing)));
    scrollTo(0, y);
  };
  await update();
  return { title: name, changed: (names) => { if (names.includes(name)) update(); } };
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
