// One task at every step that had it, in this run and in the others.

import { address, ask } from "./api.js";
import { figure, fill, h, number, table } from "./dom.js";

export async function show({ root, params, signal }) {
  const run = params.get("run"), task = params.get("task");
  const told = await ask("task", { run, task }, signal);
  fill(root, h("h1", {}, told.name), h("p", { class: "soft" }, "the same task over the steps"),
    h("div", { class: "charts" }, figure(told.drawing)),
    Object.entries(told.runs).map(([name, steps]) => [
      h("h2", {}, name),
      table(["step", "correct", "reward", "tokens", "tool errors", "kept"], steps.map((one) => [
        h("a", { href: address("group", { run: name, step: one.step, task }) }, `step ${one.step}`),
        `${one.correct}/${one.attempts}`, number(one.reward), number(Math.round(one.tokens)), number(one.errors),
        number(one.kept)]), `steps of ${name}`)]));
  return { title: told.name };
}
