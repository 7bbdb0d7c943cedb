// The trajectories of a run: filter, sort, search in their texts, choose some for an export.

import { address, ask } from "./api.js";
import { fill, h, number, say, signed } from "./dom.js";
import { has, kept } from "./kept.js";
import { answer, decisionWords, heads, legend, questionLink, titleOf, verdictChip } from "./row_parts.js";
import { LongList } from "./virtual.js";

const ROW = 46, PHONE_ROW = 62, PAGE = 100;
const PHONE = "(max-width: 600px)";
// The column to sort by, the name, the style; `of` an evaluation has no decisions.
const COLUMNS = [
  ["step", "step", "n wide", "steps"], ["name", "question", ""], ["", "family", "wide"], ["verdict", "verdict", ""], ["", "expected", ""], ["", "given", ""],
  ["bucket", "decision", "", "steps"], ["reward", "reward", "n wide", "steps"], ["advantage", "advantage", "n wide", "steps"],
  ["tokens", "tokens", "n wide"], ["calls", "calls", "n wide"], ["errors", "errors", "n wide"],
];
const QUICK = ["kept", "correct", "wrong", "wrong errors>0", "dropped_positive", "dropped_negative", "no_signal", "failed", "truncated"];
const QUICK_NAMES = { "wrong errors>0": "wrong, with a tool error" };
const EXAMPLES = "kept wrong errors>0 tokens>=4000 -truncated reward<1 step=3 NAME";

export async function show({ root, params, signal, is }) {
  const view = new TrajectoryTable(root, params, signal, is);
  await view.load();
  return {
    title: `${view.run} trajectories`,
    changed: (names) => names.includes(view.run) && view.reload(),
    keys: {
      j: () => view.move(1), k: () => view.move(-1), ArrowDown: () => view.move(1), ArrowUp: () => view.move(-1),
      Enter: () => view.open(), x: () => view.choose(), Home: () => view.move(-Infinity), End: () => view.move(Infinity),
    },
    end: () => view.end(),
  };
}

// What the list was, so that a trajectory's page can go to the next one of it.
export function listParams(params) {
  return { run: params.get("run"), of: params.get("of"), filter: params.get("filter"), sort: params.get("sort") ?? "-step" };
}

class TrajectoryTable {
  constructor(root, params, signal, is) {
    Object.assign(this, { root, signal, is });
    this.run = params.get("run");
    this.asked = listParams(params);
    this.text = params.get("text") ?? "";
    this.pages = new Map();
    this.chosen = new Set();
    this.at = -1;
    this.total = 0;
    this.columns = COLUMNS.filter(([, , , only]) => !only || !this.asked.of);
    this.names = this.columns.map(([, name]) => name);
  }

  async load() {
    const first = await this.page(0);
    if (!this.is()) return;
    this.build(first);
    if (this.text) this.search(this.text);
  }

  // Rows are kept by page; what is under way is asked for once.
  page(number) {
    if (!this.pages.has(number)) {
      const asked = ask("list", { ...this.asked, from: number * PAGE, num: PAGE }, this.signal);
      this.pages.set(number, asked);
      asked.then((told) => { asked.told = told; }, () => this.pages.delete(number));
    }
    return this.pages.get(number);
  }

  build(first) {
    this.filter = h("input", { type: "search", id: "filter", value: this.asked.filter ?? "", placeholder: EXAMPLES,
      autocomplete: "off", spellcheck: "false", maxlength: 500 });
    this.looking = h("input", { type: "search", id: "text", value: this.text, placeholder: "text in any trajectory", maxlength: 200 });
    this.counts = h("p", { class: "counts", id: "counts" });
    this.hits = h("div", { id: "hits" });
    this.box = h("div", { class: "rows", role: "rowgroup", tabindex: "0", "aria-label": "rows; j and k move, Enter opens" });
    this.export = h("a", { class: "export", hidden: true });
    const form = (label, input, submit) => h("form", { onsubmit: (event) => { event.preventDefault(); submit(input.value.trim()); } },
      h("label", { for: input.id }, label), input);
    fill(this.root,
      h("h1", {}, this.asked.of ? "Attempts " : "Trajectories ", h("span", { class: "soft" }, this.asked.of ? this.asked.of.replace(":", ", ") : "")),
      kept?.left_out > 0 && h("p", { class: "soft" }, `${kept.left_out} more are left out: a file has at most five megabytes.`),
      !kept && h("div", { class: "asking" },
        form("filter", this.filter, (filter) => this.go({ filter })),
        form("search", this.looking, (text) => this.go({ text }))),
      !kept && h("p", { class: "quick" }, QUICK.filter((words) => !this.asked.of || !["kept", "no_signal"].includes(words) && !words.startsWith("dropped")).map((words) =>
        h("button", { class: this.has(words) ? "on" : "", "aria-pressed": String(this.has(words)), onclick: () => this.toggle(words) }, QUICK_NAMES[words] ?? decisionWords(words)))),
      this.counts, this.hits, this.export,
      h("div", { class: `trajectories ${this.asked.of ? "attempts" : ""}`, role: "table", "aria-label": "trajectories", "aria-rowcount": first.matched },
        h("div", { role: "rowgroup", class: "heading" }, h("div", { class: "row head", role: "row" }, heads(this.names).map((name, i) => this.header(this.columns[i], name)))),
        this.box),
      legend(this.names, !this.asked.of));
    this.told(first);
    this.list = new LongList(this.box, { count: first.matched, height: matchMedia(PHONE).matches ? PHONE_ROW : ROW, render: (i) => this.row(i) });
  }

  has(words) {
    const filter = (this.asked.filter ?? "").split(/\s+/);
    return words.split(" ").every((word) => filter.includes(word));
  }

  toggle(words) {
    const mine = words.split(" "), others = (this.asked.filter ?? "").split(/\s+/).filter((one) => one && !mine.includes(one));
    this.go({ filter: [...others, ...(this.has(words) ? [] : mine)].join(" ") });
  }

  go(changes) {
    const next = address("list", { ...this.asked, text: this.text, ...changes });
    if (next === location.hash) dispatchEvent(new HashChangeEvent("hashchange")); else location.hash = next;
  }

  header([column, id, look], name) {
    const style = `${look} of-${id}`;
    const [sorted, down] = [this.asked.sort.replace("-", ""), this.asked.sort.startsWith("-")];
    const is = sorted === column;
    if (kept || !column) return h("div", { role: "columnheader", class: style }, name);
    const sort = is && down ? column : `-${column}`;
    return h("div", { role: "columnheader", class: style, "aria-sort": is ? (down ? "descending" : "ascending") : "none" },
      h("button", { onclick: () => this.go({ sort: is && !down && column === "step" ? "-step" : sort }) }, name, is ? (down ? " ↓" : " ↑") : ""));
  }

  told(first) {
    this.total = first.matched;
    const parts = Object.entries(first.buckets).filter(([, count]) => count)
      .map(([name, count]) => `${number(count)} ${decisionWords(name)}`);
    fill(this.counts, h("b", {}, number(first.matched)), ` of ${number(first.total)} in ${number(first.steps)} file${first.steps === 1 ? "" : "s"}`,
      first.matched ? `: ${number(first.correct)} correct; ${parts.join(", ")}` : ". The filter lets none through.",
      first.problems.map((text) => h("span", { class: "bad" }, ` ${text}`)));
  }

  row(i) {
    const asked = this.page(Math.floor(i / PAGE)), made = h("div", { class: "row", role: "row", "aria-rowindex": i + 1 });
    if (asked.told) this.fillRow(made, asked.told.rows[i % PAGE], i);
    else asked.then((told) => this.fillRow(made, told.rows[i % PAGE], i), (error) => { if (error.name !== "AbortError") say(error.message); });
    return made;
  }

  fillRow(element, row, i) {
    if (!row) return;
    const group = { run: this.run, step: row.step, task: row.task };
    const cells = {
      step: row.step, family: row.family, verdict: verdictChip(row), expected: answer(row.answer), given: answer(row.given, row.verdict),
      question: questionLink(row, this.hrefOf(row, i), h("span", { class: "soft" }, ` #${row.attempt}`)),
      decision: has("group", group) && !this.asked.of ? h("a", { href: address("group", { ...group, open: row.attempt }), title: "its group" }, decisionWords(row.bucket)) : decisionWords(row.bucket),
      reward: number(row.reward), advantage: row.advantage === null ? "–" : signed(row.advantage),
      tokens: number(row.tokens) + (row.truncated ? " ✂" : ""), calls: row.calls, errors: h("span", { class: row.errors ? "bad" : "" }, row.errors),
    };
    fill(element, this.columns.map(([, name, style]) => h("div", { role: "cell", class: `${style} of-${name}` }, cells[name])));
    element.classList.toggle("at", i === this.at);
    element.classList.toggle("chosen", this.chosen.has(`${row.file}:${row.row}`));
  }

  hrefOf(row, i) {
    return address("trajectory", { ...this.asked, file: row.file, row: row.row, i });
  }

  rowAt(i) {
    return this.pages.get(Math.floor(i / PAGE))?.told?.rows[i % PAGE];
  }

  move(by) {
    if (!this.total) return;
    this.at = Math.max(0, Math.min(this.total - 1, this.at + by));
    this.list.show(this.at);
    for (const [i, element] of this.list.shown) element.classList.toggle("at", i === this.at);
    const row = this.rowAt(this.at);
    if (row) say(`${titleOf(row)}, sibling ${row.attempt}, ${row.verdict}`);
  }

  open() {
    const row = this.rowAt(this.at);
    if (row) location.hash = this.hrefOf(row, this.at);
  }

  choose() {
    const row = this.rowAt(this.at);
    if (!row || kept) return;
    const place = `${row.file}:${row.row}`;
    if (this.chosen.has(place)) this.chosen.delete(place); else if (this.chosen.size < 50) this.chosen.add(place);
    this.list.shown.get(this.at)?.classList.toggle("chosen", this.chosen.has(place));
    const query = new URLSearchParams({ run: this.run });
    if (this.asked.of) query.set("of", this.asked.of);
    for (const one of this.chosen) query.append("at", one);
    this.export.hidden = !this.chosen.size;
    this.export.href = `export?${query}`;
    this.export.textContent = `export ${this.chosen.size} as one HTML file`;
  }

  async reload() {
    this.pages.clear();
    const first = await this.page(0);
    if (!this.is() || !this.list) return;
    this.told(first);
    this.list.resize(first.matched);
  }

  // Slices until the end, or until another page is shown.
  async search(text) {
    const found = h("ol", { class: "hits" }), how = h("p", { class: "soft" });
    fill(this.hits, how, found);
    let from = 0, number_found = 0, unread = 0;
    const begun = performance.now();
    while (from !== null && number_found < 500) {
      let told;
      try {
        told = await ask("search", { ...this.asked, text, from }, this.signal);
      } catch (error) {
        if (error.name !== "AbortError") how.textContent = error.message;
        return;
      }
      if (!this.is()) return;
      for (const hit of told.hits) {
        if (!number_found++) performance.measure("first hit", { start: begun });
        const turn = /turn (\d+)$/.exec(hit.where)?.[1];
        found.append(h("li", {}, questionLink(hit, address("trajectory", { ...this.asked, file: hit.file, row: hit.row, turn })),
          h("span", { class: "soft" }, this.asked.of ? ` attempt ${hit.attempt} ` : ` step ${hit.step} #${hit.attempt} `), verdictChip(hit),
          h("div", {}, h("span", { class: "soft" }, `${hit.where}: `), h("span", { class: "quote" }, hit.before, h("b", {}, hit.found), hit.after))));
      }
      unread += told.unread;
      how.textContent = `${number(number_found)} hits of “${text}” in ${number(told.looked)} of ${number(told.of)} trajectories`
        + (unread ? `, ${unread} could not be read` : "") + (told.next === null ? "" : " …");
      from = told.next;
    }
  }

  end() {
    this.list?.end();
  }
}


