// One trajectory: its question and answers, the conversation turn by turn, or its tokens.

import { address, ask } from "./api.js";
import { fill, h, number, seconds, signed, words } from "./dom.js";
import { has, isAnswered, kept } from "./kept.js";
import { listParams } from "./page_list.js";
import { answer, DECISIONS, decisionChip, titleOf, verdictChip } from "./row_parts.js";
import { TokenView } from "./tokens.js";
import { longText, toggleLong, turnsOf } from "./turns.js";

const SIBLING_KINDS = { correct: "k", wrong: "w", "no reward": "f" };

export async function show({ root, params, signal, is }) {
  const place = { run: params.get("run"), of: params.get("of"), file: params.get("file"), row: params.get("row") };
  const told = await ask("conversation", place, signal);
  if (!is()) return null;
  const page = new TrajectoryPage(root, params, place, told, signal);
  page.build();
  return {
    title: titleOf(told.listed, 60),
    keys: {
      j: () => page.turn(1), k: () => page.turn(-1), f: () => toggleLong(root), "[": () => page.other(-1), "]": () => page.other(1),
      p: () => page.sibling(-1), n: () => page.sibling(1),
      c: () => page.tab(page.params.get("tab") === "tokens" ? "" : "tokens"),
      ArrowRight: () => page.tokens?.step(1), ArrowLeft: () => page.tokens?.step(-1),
      g: () => { if (page.group) location.hash = page.group; },
    },
    end: () => page.tokens?.end(),
  };
}

class TrajectoryPage {
  constructor(root, params, place, told, signal) {
    Object.assign(this, { root, params, place, told, signal });
    const { listed } = told;
    this.group = place.of ? null : address("group", { run: place.run, step: listed.step, task: listed.task, open: listed.attempt });
  }

  build() {
    const { told, place } = this, isTokens = this.params.get("tab") === "tokens";
    this.root.classList.toggle("tokens-tab", isTokens);
    fill(this.root, this.head(), this.links(isTokens), this.layout(), this.folds(),
      this.content = h("div", isTokens ? { class: "turns tokens", role: "group", "aria-label": "tokens; the arrow keys step through them" } : { class: "turns" }));
    if (isTokens) {
      this.tokens = new TokenView(this.content, place, told, this.signal, (token) => this.remember({ token }));
      if (this.params.has("token")) this.tokens.show(Number(this.params.get("token")));
      return;
    }
    this.content.append(...turnsOf(told, (turn) => this.tryFrom(turn)));
    const first = this.content.querySelector(`[data-turn="${Number(this.params.get("turn"))}"]`);
    first?.scrollIntoView({ block: "start" });
  }

  head() {
    const { told } = this, { listed } = told, { question } = told.task;
    const isLong = question && (question.length > 200 || question.trim().includes("\n"));
    return [
      h("div", { class: "above" }, listed.family && h("span", { class: "soft" }, `${listed.family} · `),
        h("span", { class: "soft" }, this.place.of ? `attempt ${listed.attempt}` : `step ${listed.step} · sibling ${listed.attempt}`), this.trunk(), this.siblings(),
        this.params.has("i") && h("span", { class: "pager" }, h("button", { onclick: () => this.other(-1) }, "← previous"),
          h("span", { class: "soft" }, `row ${number(Number(this.params.get("i")) + 1)} of the list`), h("button", { onclick: () => this.other(1) }, "next →"))),
      h("h1", { class: "question-title", title: listed.question }, titleOf(listed, isLong ? 110 : 200)),
      h("div", { class: "outcome" }, verdictChip(listed), listed.bucket !== "evaluated" && decisionChip(listed.bucket),
        h("span", {}, "expected ", answer(told.task.answer === null ? "" : String(told.task.answer))), h("span", {}, "given ", answer(told.given, listed.verdict)),
        listed.reward !== null && h("span", {}, `reward ${number(listed.reward)}`), told.advantage !== null && h("span", {}, `advantage ${advantage(told.advantage)}`),
        h("span", { class: listed.errors ? "bad" : "" }, `${listed.calls} tool call${listed.calls === 1 ? "" : "s"}${listed.calls ? `, ${listed.errors} with an error` : ""}`)),
      (DECISIONS[listed.bucket] || told.failed) && h("p", { class: "soft small" }, DECISIONS[listed.bucket]?.[1], told.failed && ` ${told.failed.kind}: ${told.failed.detail}`.slice(0, 1000)),
      isLong && h("div", { class: "turn asked" }, h("div", { class: "who" }, "question"), longText(question, { policy: true })),
    ];
  }

  // Where a branch leaves its parent.
  trunk() {
    const { fork, listed, siblings } = this.told;
    if (!fork) return null;
    const name = `${listed.sibling}${fork.parent && `~${fork.parent}`}`, parent = siblings.find((one) => one.attempt === name);
    return h("span", { class: "soft" }, ", continues ", parent ? h("a", { href: this.hrefOf(parent) }, name) : name, ` from turn ${fork.turns}`);
  }

  // A square for each sibling of the group, or attempt at the question.
  siblings() {
    if (this.told.siblings.length < 2) return null;
    return h("span", { class: "cells siblings", role: "group", "aria-label": "siblings" }, this.told.siblings.slice(0, 256).map((one) => {
      const kind = one.verdict === "wrong" && one.truncated ? "t" : SIBLING_KINDS[one.verdict], is = one.file === this.place.file && one.row === Number(this.place.row);
      const text = `sibling ${one.attempt}: ${one.verdict}`, at = { ...this.place, file: one.file, row: one.row };
      if (is || !has("conversation", clean(at))) return h("span", { class: `${kind} ${is ? "at" : ""}`, role: "img", title: text, "aria-label": text });
      return h("a", { class: kind, href: this.hrefOf(one), title: text, "aria-label": text });
    }));
  }

  hrefOf(one) {
    const { run, of } = this.place;
    return address("trajectory", { run, of, file: one.file, row: one.row, tab: this.params.get("tab") });
  }

  sibling(by) {
    const { siblings } = this.told, at = siblings.findIndex((one) => one.file === this.place.file && one.row === Number(this.place.row));
    if (siblings[at + by]) location.hash = this.hrefOf(siblings[at + by]);
  }

  links(isTokens) {
    const { told, place } = this;
    return h("p", { class: "links" },
      h("button", { class: isTokens ? "" : "on", "aria-pressed": String(!isTokens), onclick: () => this.tab("") }, "conversation"),
      h("button", { class: isTokens ? "on" : "", "aria-pressed": String(isTokens), onclick: () => this.tab("tokens") }, `${number(told.num_tokens)} tokens`),
      this.group && h("a", { href: this.group }, "its group"),
      !place.of && isAnswered("task") && h("a", { href: address("task", { run: place.run, task: told.listed.task }) }, "this task over the steps"),
      !kept && h("a", { href: `export?${new URLSearchParams({ run: place.run, ...(place.of ? { of: place.of } : {}), at: `${place.file}:${place.row}` })}` }, "export"));
  }

  folds() {
    const { told, place } = this;
    return h("div", { class: "folds" },
      h("details", { class: "fold" }, h("summary", {}, "prompt"), longText(told.prompt, { policy: true })),
      h("details", { class: "fold" }, h("summary", {}, "facts"), facts(told)),
      h("details", { class: "fold" }, h("summary", {}, "commands"),
        told.replay && h("p", {}, h("span", { class: "soft" }, "compute the loss of this step again: "), h("code", { class: "replay" }, told.replay)),
        h("p", {}, h("span", { class: "soft" }, "continue from its end: "), h("code", { class: "replay", id: "try" }, told.chat))));
  }

  // The parts by origin, drawn to scale; a click goes there.
  layout() {
    const bar = h("div", { class: "origins", role: "img", "aria-label": "parts of the trajectory by origin: prompt, policy and tools" });
    const total = this.told.num_tokens || 1;
    for (const [start, end, origin] of joined(this.told.segments, 400)) {
      const part = bar.appendChild(h("i", { class: origin, title: `${origin}, tokens ${start} to ${end}` }));
      part.style.width = `${100 * (end - start) / total}%`;
    }
    bar.addEventListener("click", (event) => {
      const box = bar.getBoundingClientRect(), token = total * (event.clientX - box.left) / box.width;
      if (this.tokens) return this.tokens.show(Math.floor(token));
      const turn = this.told.turns.findIndex((one) => one.end >= token);
      this.content.children[turn < 0 ? this.told.turns.length - 1 : turn]?.scrollIntoView({ block: "start" });
    });
    return bar;
  }

  // The command that lets the policy write this turn again, from the tokens before it.
  tryFrom(turn) {
    const command = h("code", { class: "replay", hidden: true }, `${this.told.chat}@${turn}`);
    const button = h("button", { class: "small", "aria-expanded": "false", "aria-label": `try turn ${turn} again`, onclick: () => {
      command.hidden = !command.hidden;
      button.setAttribute("aria-expanded", String(!command.hidden));
    } }, "try");
    return [" ", button, " ", command];
  }

  // Moves the focus to the next or previous turn, from the focused one or the one at the top of the window.
  turn(by) {
    if (this.tokens) return this.tokens.page(by);
    const turns = [...this.content.children], top = document.getElementById("bar").offsetHeight + 12;
    let at = turns.indexOf(document.activeElement.closest(".turn"));
    if (at < 0) at = turns.findLastIndex((one) => one.getBoundingClientRect().top <= top);
    const next = turns[Math.max(0, Math.min(turns.length - 1, at + by))];
    if (!next) return;
    next.tabIndex = -1;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "start" });
    this.remember({ turn: next.dataset.turn });
  }

  // The address names the turn or the token that is shown, without a new entry in the history.
  remember(place) {
    history.replaceState(null, "", address("trajectory", { ...Object.fromEntries(this.params), ...place }));
  }

  tab(tab) {
    location.hash = address("trajectory", { ...Object.fromEntries(this.params), turn: "", token: "", tab });
  }

  async other(by) {
    if (!this.params.has("i")) return;
    const i = Number(this.params.get("i")) + by;
    if (i < 0) return;
    const asked = listParams(this.params);
    const { rows } = await ask("list", { ...asked, from: i, num: 1 }, this.signal);
    if (rows.length) location.hash = address("trajectory", { ...asked, file: rows[0].file, row: rows[0].row, i, tab: this.params.get("tab") });
  }
}

function clean(place) {
  return Object.fromEntries(Object.entries(place).filter(([, value]) => value !== null));
}

function advantage(value) {
  return Array.isArray(value) ? `${signed(value[0])} to ${signed(value[1])}, by token` : signed(value);
}

function facts(told) {
  const { listed, times } = told;
  const rows = {
    "task": told.task.id,
    "family": told.task.source,
    "reward": `${number(listed.reward)}${told.method ? ` (${told.method})` : ""}`,
    "finished": words(told.finish ?? ""),
    "penalty": told.penalty ? `tool errors ${number(told.penalty.error)} + answer format ${number(told.penalty.format)}` : "–",
    "advantage": told.advantage === null ? "–" : advantage(told.advantage),
    "tokens": `${number(told.num_tokens)}, of these ${number(listed.policy_tokens)} by the policy`
      + (told.starts.length > 1 ? `, in ${told.starts.length} sequences` : ""),
    "tool calls": `${listed.calls}, ${listed.errors} with an error`,
    "written by": `policy version ${listed.version}, stage ${told.stage}`,
    "seed, step, sibling": (told.seed ?? []).join(", "),
    ...(times ? { "began": new Date(1000 * times.began).toISOString().replace("T", " ").slice(0, 19) + " UTC",
      "took": `${seconds(times.seconds)}: policy ${seconds(times.writing_s)}, tools ${seconds(times.tools_s)}`
        + (times.queued_s ? `; ${seconds(times.queued_s)} waiting for the engine` : "") } : {}),
  };
  return h("dl", { class: "facts" }, Object.entries(rows).map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value).slice(0, 600))]));
}

// At most so many parts: the shortest are joined to the one before.
function joined(segments, most) {
  if (segments.length <= most) return segments;
  const total = segments.at(-1)[1], step = total / most, parts = [];
  for (const [start, end, origin] of segments) {
    const last = parts.at(-1);
    if (last && end - start < step && last[1] - last[0] < step) last[1] = end; else parts.push([start, end, origin]);
  }
  return parts.slice(0, 2 * most);
}
