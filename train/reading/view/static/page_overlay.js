// Several runs in the same drawings.

import { ask } from "./api.js";
import { figure, fill, h } from "./dom.js";

export async function show({ root, params, signal, is }) {
  const names = params.getAll("run");
  const update = async () => {
    const told = await ask("overlay", { run: names }, signal);
    if (!is()) return;
    const y = scrollY;
    fill(root, h("h1", {}, "Runs overlaid"), h("p", { class: "soft" }, told.runs.join(", ")),
      h("div", { class: "charts" }, told.charts.map(figure)));
    scrollTo(0, y);
  };
  await update();
  return { title: names.join(", "), changed: (changed) => names.some((n) => changed.includes(n)) && update() };
}
