// A group: one row for each sibling with the reason of its decision, and any two siblings side by side.

import { address, ask } from "./api.js";
import { fill, h, number, signed, table } from "./dom.js";
import { has, isAnswered } from "./kept.js";
import { answer, DECISIONS, decisionChip, decisionWords, heads, legend, titleOf, verdictChip } from "./row_parts.js";
import { toggleLong, turnsOf } from "./turns.js";

const BUCKETS = ["kept", "dropped_positive", "dropped_negative", "no_signal", "failed", "ended_early"];
const NAMES = ["verdict", "given", "decision", "reward", "advantage", "tokens", "calls", "errors"];

export async function show({ root, params, signal, is }) {
  const told = await ask("group", { run: params.get("run"), step: params.get("step"), task: params.get("task") }, signal);
  if (!is()) return null;
  const page = new GroupPage(root, params, told, signal);
  return { title: `${titleOf(told.siblings[0], 50)}, step ${told.step}`,
    keys: { j: () => page.move(1), k: () => page.move(-1), f: () => toggleLong(root) } };
}

class GroupPage {
  constructor(root, params, told, signal) {
    Object.assign(this, { root, told, signal });
    [this.run, this.step, this.task] = ["run", "step", "task"].map((name) => params.get(name));
    const named = (name) => (params.get(name) ?? "").split(",").filter((one) => told.siblings.some((s) => s.attempt === one));
    this.open = new Set(named("open"));
    this.chosen = named("beside").slice(0, 2);
    this.build();
  }

  build() {
    const { told, run, step, task } = this, { siblings } = told, first = siblings.find((one) => one.question) ?? siblings[0];
    fill(this.root,
      h("div", { class: "above soft" }, `${first.family} · step ${told.step} · group of ${siblings.length}`),
      h("h1", { class: "question-title", title: first.question }, titleOf(first, 300)),
      h("p", { class: "outcome" }, h("span", {}, "expected ", answer(first.answer)), h("span", {}, drawText(told))),
      h("p", { class: "links" }, isAnswered("task") && h("a", { href: address("task", { run, task }) }, "this task over the steps"),
        h("a", { href: address("list", { run, filter: `task=${task}` }) }, "all its trajectories"),
        h("a", { href: address("list", { run, filter: `step=${step}` }) }, "all of the step")),
      h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "siblings" }, h("table", { class: "group" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "sibling"), heads(NAMES).map((name, i) => h("th", { scope: "col", class: i > 2 ? "n wide" : "" }, name)))),
        this.body = h("tbody", {}, siblings.map((one) => this.row(one))))),
      legend(NAMES, true),
      this.reader = h("div", { id: "reader" }),
      sums(told));
    for (const one of siblings) if (this.open.has(one.attempt)) this.toggle(one.attempt, true);
    this.beside();
  }

  row(s) {
    const box = h("input", { type: "checkbox", "aria-label": `sibling ${s.attempt} side by side`, title: "choose two to read them side by side", checked: this.chosen.includes(s.attempt), onchange: () => this.choose(s.attempt) });
    return h("tr", { "data-sibling": s.attempt, class: s.bucket },
      h("td", { class: "which" }, box, h("button", { class: "small unfold", "aria-expanded": "false", "aria-label": `read sibling ${s.attempt}`, onclick: () => this.toggle(s.attempt) }, "▸"),
        h("a", { href: this.hrefOf(s) }, `${"↳ ".repeat(s.attempt.split(/[~/]/).length - 1)}#${s.attempt}`)),
      h("td", {}, verdictChip(s)), h("td", {}, answer(s.given, s.verdict)),
      h("td", { class: "why" }, decisionChip(s.bucket), h("div", { class: "small" }, reasonOf(s, this.told))),
      [number(s.reward), signed(s.advantage), number(s.tokens) + (s.truncated ? " ✂" : ""), number(s.calls), h("span", { class: s.errors ? "bad" : "" }, number(s.errors))]
        .map((cell) => h("td", { class: "n wide" }, cell)));
  }

  hrefOf(s) {
    return address("trajectory", { run: this.run, file: s.file, row: s.row, filter: `task=${this.task} step=${this.step}`, sort: "sibling", i: this.told.siblings.indexOf(s) });
  }

  rowOf(number) {
    return this.body.querySelector(`[data-sibling="${number}"]`);
  }

  // Opens or closes the conversation below a row.
  toggle(sibling, isOpen = !this.open.has(sibling)) {
    const row = this.rowOf(sibling), button = row.querySelector(".unfold");
    if (isOpen) this.open.add(sibling); else this.open.delete(sibling);
    button.setAttribute("aria-expanded", String(isOpen));
    button.textContent = isOpen ? "▾" : "▸";
    if (row.nextElementSibling?.classList.contains("inside")) row.nextElementSibling.remove();
    if (isOpen) {
      const cell = h("td", { colspan: NAMES.length + 1 });
      row.after(h("tr", { class: "inside" }, cell));
      this.read(cell, sibling);
    }
    this.remember();
  }

  async read(element, sibling) {
    const s = this.told.siblings.find((one) => one.attempt === sibling), at = { run: this.run, file: s.file, row: s.row };
    if (!has("conversation", at)) return fill(element, h("p", { class: "soft" }, "This file does not have the trajectory."));
    try {
      const told = await ask("conversation", at, this.signal);
      fill(element, h("p", { class: "phone small soft" }, reasonOf(s, this.told)), turnsOf(told));
    } catch (error) {
      if (error.name !== "AbortError") fill(element, h("p", { class: "bad" }, error.message));
    }
  }

  choose(sibling) {
    this.chosen = this.chosen.includes(sibling) ? this.chosen.filter((one) => one !== sibling) : [...this.chosen, sibling].slice(-2);
    for (const row of this.body.querySelectorAll("[data-sibling]")) row.querySelector("input").checked = this.chosen.includes(row.dataset.sibling);
    this.beside();
    this.remember();
  }

  // The two chosen siblings in columns.
  beside() {
    if (this.chosen.length < 2) return fill(this.reader);
    fill(this.reader, h("h2", {}, `Siblings ${this.chosen[0]} and ${this.chosen[1]} side by side`), h("div", { class: "pair" }, this.chosen.map((number) => {
      const s = this.told.siblings.find((one) => one.attempt === number), inside = h("div", {}, "…");
      this.read(inside, number);
      return h("div", {}, h("p", { class: "outcome" }, h("a", { href: this.hrefOf(s) }, `#${number}`), verdictChip(s), decisionChip(s.bucket), answer(s.given, s.verdict)), inside);
    })));
  }

  // The address shows what is open, without a new entry in the history.
  remember() {
    history.replaceState(null, "", address("group", { run: this.run, step: this.step, task: this.task, open: [...this.open].join(","), beside: this.chosen.join(",") }));
  }

  move(by) {
    const rows = [...this.body.querySelectorAll("[data-sibling]")], now = rows.indexOf(document.activeElement.closest?.("[data-sibling]"));
    const row = rows[Math.max(0, Math.min(rows.length - 1, now + by))];
    row.querySelector(".unfold").focus();
    row.scrollIntoView({ block: "nearest" });
  }
}

// The numbers of the draw among the siblings of the same verdict, or the meaning of the decision.
function reasonOf(s, { draw, siblings }) {
  if (!draw.happened || s.reward === null) return DECISIONS[s.bucket]?.[1] ?? "";
  const alike = siblings.filter((one) => one.verdict === s.verdict), kept = alike.filter((one) => one.kept).length;
  const text = `${kept} of ${alike.length} ${s.verdict} siblings`, error = s.penalty_error ?? 0, format = s.penalty_format ?? 0;
  if (s.weight === null) return `${text} are kept${draw.mode === "sort" ? ", those with the lowest penalty" : ""}; its penalty is ${(error + format).toFixed(2)}.`;
  if (draw.mode !== "paper" || s.verdict !== "correct") return `${text} were drawn, all with the same weight.`;
  const total = alike.reduce((sum, one) => sum + one.weight, 0);
  return `${text} were drawn; this one has weight ${s.weight.toFixed(2)} of ${total.toFixed(2)}, `
    + `1 / (${draw.eps} + ${error.toFixed(2)} for tool errors + ${format.toFixed(2)} for the answer format).`;
}

function drawText({ draw, sums: counts, siblings }) {
  const correct = siblings.filter((s) => s.verdict === "correct").length;
  const text = `${correct} of ${siblings.length} correct, ${counts.kept} kept. `;
  if (counts.no_signal) return `${text}All scored siblings have the same reward, so the advantage is zero and the learner uses none.`;
  if (!draw.happened) return `${text}There are no more than the learner uses, so all are kept.`;
  if (draw.mode === "paper") return `${text}Resample-on-Correct draws correct siblings with weight 1 / (${draw.eps} + penalties), wrong ones with equal weights.`;
  return `${text}Resample-on-Correct in mode ${draw.mode ?? "unknown (there is no config.toml)"}.`;
}

function sums({ sums: mine, step_sums: ofStep, ledger, step }) {
  const names = [...new Set([...BUCKETS, ...Object.keys(mine), ...Object.keys(ofStep)])].filter((name) => name !== "generated");
  const row = (label, counts) => [label, ...names.map((name) => number(counts[name] ?? 0)), number(counts.generated)];
  const rows = [row("this group", mine), row(`all groups of step ${step}`, ofStep)];
  if (ledger) rows.push(row("metrics.jsonl", ledger));
  const equal = ledger && [...BUCKETS, "generated"].every((name) => ledger[name] === ofStep[name]);
  return h("details", { class: "fold" }, h("summary", { id: "ledger", class: ledger && !equal ? "bad" : "" },
    ledger ? `The sums of the rows ${equal ? "equal" : "differ from"} metrics.jsonl.` : "metrics.jsonl has no sums of this step."),
  table(["", ...names.map(decisionWords), "generated"], rows, "sums"));
}
