// A page of sections that a command wrote: facts, figures, tables and texts.

import { ask } from "./api.js";
import { chip, figure, fill, h, table } from "./dom.js";

export async function show({ root, signal }) {
  const told = await ask("article", {}, signal);
  fill(root, h("h1", {}, told.title), told.sections.map(section));
  return { title: told.title };
}

function section({ heading, facts = [], notes = [], list = [], figures = [], table: cells, texts = [] }) {
  return [heading && h("h2", {}, heading),
    facts.length > 0 && h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    notes.map((note) => h("p", { class: "soft" }, note)),
    list.length > 0 && h("ul", {}, list.map((one) => h("li", {}, one))),
    figures.length > 0 && h("div", { class: "charts" }, figures.map(figure)),
    cells && table(cells.head, cells.rows.map((row) => row.map(cell)), heading ?? "table", cells.text),
    texts.map((text, k) => shaded(text, k === 0))];
}

function cell(value) {
  return Array.isArray(value) ? value.map(([text, count]) => [h("code", {}, text), h("span", { class: "soft" }, ` (${count}) `)]) : value;
}

function shaded({ title, chip: why, blocks }, open) {
  return h("details", { class: "trajectory", open },
    h("summary", {}, h("span", { class: "question-line" }, title), chip(why, "quiet")),
    h("div", { class: "body" }, blocks.map(([origin, pieces]) => h("div", { class: origin === "policy" ? "turn" : "call" },
      origin !== "policy" && h("div", { class: "who" }, origin),
      h("pre", {}, pieces.map(([text, shade, nats]) => shade ? h("span", { class: `h${shade}`, title: `${nats.toFixed(2)} nats` }, text) : text))))));
}
