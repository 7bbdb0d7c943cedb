// The trajectories of a run: filter, sort, search in their texts, choose some for an export.

import { address, ask } from "./api.js";
import { chip, fill, h, number, say, signed, STYLE_OF, words } from "./dom.js";
import { kept } from "./kept.js";
import { LongList } from "./virtual.js";

const ROW = 30, PAGE = 100;
const COLUMNS = [
  ["step", "step", "n"], ["name", "task", ""], ["verdict", "verdict", ""], ["bucket", "fate", ""],
  ["reward", "reward", "n"], ["penalty", "penalty", "n wide"], ["advantage", "advantage", "n wide"],
  ["tokens", "tokens", "n"], ["turns", "turns", "n wide"], ["calls", "calls", "n"], ["errors", "errors", "n"],
];
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
      h("h1", {}, "Trajectories ", h("span", { class: "soft" }, this.asked.of ? this.asked.of.replace(":", ", ") : "")),
      kept?.left_out > 0 && h("p", { class: "soft" }, `${kept.left_out} more had no room: a page of five megabytes still opens everywhere.`),
      !kept && h("div", { class: "asking" },
        form("filter", this.filter, (filter) => this.go({ filter })),
        form("search", this.looking, (text) => this.go({ text }))),
      !kept && h("p", { class: "quick" }, ["kept", "correct", "wrong", "dropped_positive", "dropped_negative", "no_signal", "failed", "truncated", "errors>0"].map((word) =>
        h("button", { class: this.has(word) ? "on" : "", "aria-pressed": String(this.has(word)), onclick: () => this.toggle(word) }, words(word)))),
      this.counts, this.hits, this.export,
      h("div", { class: "trajectories", role: "table", "aria-label": "trajectories", "aria-rowcount": first.matched },
        h("div", { role: "rowgroup", class: "heading" }, h("div", { class: "row head", role: "row" }, COLUMNS.map((column) => this.header(column)))),
        this.box));
    this.told(first);
    this.list = new LongList(this.box, { count: first.matched, height: ROW, render: (i) => this.row(i) });
  }

  has(word) {
    return (this.asked.filter ?? "").split(/\s+/).includes(word);
  }

  toggle(word) {
    const others = (this.asked.filter ?? "").split(/\s+/).filter((one) => one && one !== word);
    this.go({ filter: [...others, ...(this.has(word) ? [] : [word])].join(" ") });
  }

  go(changes) {
    const next = address("list", { ...this.asked, text: this.text, ...changes });
    if (next === location.hash) dispatchEvent(new HashChangeEvent("hashchange")); else location.hash = next;
  }

  header([column, name, style]) {
    const [sorted, down] = [this.asked.sort.replace("-", ""), this.asked.sort.startsWith("-")];
    const is = sorted === column;
    if (kept) return h("div", { role: "columnheader", class: style }, name);
    const sort = is && down ? column : `-${column}`;
    return h("div", { role: "columnheader", class: style, "aria-sort": is ? (down ? "descending" : "ascending") : "none" },
      h("button", { onclick: () => this.go({ sort: is && !down && column === "step" ? "-step" : sort }) }, name, is ? (down ? " ↓" : " ↑") : ""));
  }

  told(first) {
    this.total = first.matched;
    const parts = Object.entries(first.buckets).filter(([, count]) => count)
      .map(([name, count]) => `${number(count)} ${words(name)}`);
    fill(this.counts, h("b", {}, number(first.matched)), ` of ${number(first.total)} in ${number(first.steps)} files`,
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
    const penalty = row.penalty_error === null ? null : row.penalty_error + row.penalty_format;
    const cells = {
      step: row.step, verdict: chip(row.verdict, STYLE_OF[row.verdict]), bucket: words(row.bucket),
      name: h("a", { href: this.hrefOf(row, i) }, row.name, h("span", { class: "soft" }, ` #${row.sibling}`)),
      reward: number(row.reward), penalty: number(penalty), advantage: row.advantage === null ? "–" : signed(row.advantage),
      tokens: number(row.tokens) + (row.truncated ? " ✂" : ""), turns: row.turns, calls: row.calls, errors: row.errors,
    };
    fill(element, COLUMNS.map(([column, , style]) => h("div", { role: "cell", class: style }, cells[column])));
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
    if (row) say(`${row.name}, sibling ${row.sibling}, ${row.verdict}`);
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
        found.append(h("li", {}, h("a", { href: address("trajectory", { ...this.asked, file: hit.file, row: hit.row }) },
          `step ${hit.step} ${hit.name} #${hit.sibling}`), " ", chip(hit.verdict, STYLE_OF[hit.verdict]),
          h("span", { class: "soft" }, ` ${hit.where}: `), h("span", { class: "quote" }, hit.before, h("b", {}, hit.found), hit.after)));
      }
      unread += told.unread;
      how.textContent = `${number(number_found)} with “${text}” in ${number(told.looked)} of ${number(told.of)} looked at`
        + (unread ? `, ${unread} could not be read` : "") + (told.next === null ? "" : " …");
      from = told.next;
    }
  }

  end() {
    this.list?.end();
  }
}


