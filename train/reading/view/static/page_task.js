// One task at every step that had it, in this run and in the others.

import { address, ask } from "./api.js";
import { figure, fill, h, number, table } from "./dom.js";
import { answer, titleOf } from "./row_parts.js";

export async function show({ root, params, signal }) {
  const run = params.get("run"), task = params.get("task");
  const { listed, drawing, runs } = await ask("task", { run, task }, signal);
  fill(root, h("div", { class: "above soft" }, `${listed.family} · one task over the steps`),
    h("h1", { class: "question-title", title: listed.question }, titleOf(listed, 300)),
    h("p", { class: "outcome" }, h("span", {}, "expected ", answer(listed.answer)), h("a", { href: address("list", { run, filter: `task=${task}` }) }, "all its trajectories")),
    h("h2", { class: "hidden" }, "All runs"), h("div", { class: "charts" }, figure(drawing)),
    Object.entries(runs).map(([name, steps]) => [
      h("h2", {}, name),
      table(["step", "correct", "reward", "tokens", "tool errors", "kept"], steps.map((one) => [
        h("a", { href: address("group", { run: name, step: one.step, task }) }, `step ${one.step}`),
        `${one.correct}/${one.attempts}`, number(one.reward), number(Math.round(one.tokens)), number(one.errors),
        number(one.kept)]), `steps of ${name}`)]));
  return { title: titleOf(listed, 60) };
}
