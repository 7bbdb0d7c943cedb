// The questions of an evaluation, or of two: filters, and a row for each question with its attempts.

import { address } from "./api.js";
import { fill, h, number } from "./dom.js";
import { has, kept } from "./kept.js";
import { answer, titleOf } from "./row_parts.js";
import { LazyBlocks } from "./virtual.js";

const MOST_ANSWERS = 4;
export const KINDS = { k: "correct", w: "wrong", t: "truncated, so wrong", f: "failed" };

// Each attempt of a question as a square that leads to it; `place` is the file of its set.
export function cells(one, place) {
  return h("span", { class: "cells" }, [...one.cells].slice(0, 256).map((code, k) => {
    const at = { ...place, row: one.row + k }, text = `attempt ${k}: ${KINDS[code]}${one.answers?.[k] ? `, ${one.answers[k]}` : ""}; line ${at.row + 1} of ${at.file}.jsonl`;
    if (!has("conversation", at)) return h("span", { class: code, role: "img", title: text, "aria-label": text });
    return h("a", { class: `${code} ${kept ? "kept" : ""}`, href: address("trajectory", at), title: text, "aria-label": text });
  }));
}

// The given answers, the most frequent first, each with its number of attempts.
export function givenAnswers(one) {
  const given = new Map();
  one.answers?.forEach((text, k) => {
    const known = given.get(text ?? "") ?? { count: 0, correct: false };
    given.set(text ?? "", { count: known.count + 1, correct: known.correct || one.cells[k] === "k" });
  });
  if (![...given.keys()].some(Boolean)) return h("span", { class: "soft" }, "–");
  const sorted = [...given].sort(([, x], [, y]) => y.count - x.count);
  return h("span", { class: "given" }, sorted.slice(0, MOST_ANSWERS).map(([text, { count, correct }]) =>
    h("span", {}, text ? answer(text, correct ? "correct" : "wrong") : h("span", { class: "soft" }, "no answer"), count > 1 && h("span", { class: "soft" }, ` ×${count}`), " ")),
  sorted.length > MOST_ANSWERS && h("span", { class: "soft" }, `and ${sorted.length - MOST_ANSWERS} more`));
}

export function questionCells(one) {
  return [h("div", { class: "q", title: one.question || one.id }, titleOf(one, 240)),
    h("div", { class: "small" }, one.family && h("span", { class: "soft" }, `${one.family} · `), one.answer !== undefined && ["expected ", answer(one.answer)])];
}

// Buttons that filter the rows, a field for a part of the question, and the rows. `filters` are [key, label, test].
export class QuestionRows {
  constructor(root, { rows, textOf, filters, render, label, params, page }) {
    Object.assign(this, { rows, textOf, filters, render, params, page });
    this.only = filters.some(([key]) => key === params.get("only")) ? params.get("only") : filters[0][0];
    this.text = h("input", { type: "search", "aria-label": "part of the question", placeholder: "part of the question", maxlength: 200, value: params.get("find") ?? "", oninput: () => this.draw() });
    this.buttons = filters.map(([key, name, test]) => h("button", { onclick: () => { this.only = key; this.draw(); } }, `${name} ${number(rows.filter(test).length)}`));
    this.body = h("div", { class: "questions", role: "list", "aria-label": label });
    root.append(h("p", { class: "quick" }, this.buttons, this.text), this.body);
    this.draw(true);
  }

  draw(isFirst = false) {
    const wanted = this.text.value.toLowerCase(), test = this.filters.find(([key]) => key === this.only)[2];
    const shown = this.rows.filter((one) => test(one) && (!wanted || this.textOf(one).toLowerCase().includes(wanted)));
    this.buttons.forEach((button, k) => {
      const is = this.filters[k][0] === this.only;
      button.className = is ? "on" : "";
      button.setAttribute("aria-pressed", String(is));
    });
    this.list?.end();
    fill(this.body, !shown.length && h("p", { class: "soft", role: "listitem" }, "There is no such question."));
    this.list = new LazyBlocks(this.body, { count: shown.length, height: () => 58, render: (i) => this.render(shown[i]), role: "listitem" });
    if (isFirst) return;
    history.replaceState(null, "", address(this.page, { ...Object.fromEntries(this.params), only: this.only, find: this.text.value }));
  }

  end() {
    this.list.end();
  }
}
