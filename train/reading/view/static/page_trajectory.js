// One trajectory: facts, the conversation turn by turn with its calls folded, or its tokens.

import { address, ask } from "./api.js";
import { chip, figure, fill, h, number, seconds, signed, STYLE_OF, words } from "./dom.js";
import { isAnswered, kept } from "./kept.js";
import { listParams } from "./page_list.js";
import { TokenView } from "./tokens.js";
import { LongList } from "./virtual.js";

const LONG = 20000; // characters of one text that are shown before it is asked for

export async function show({ root, params, signal, is }) {
  const place = { run: params.get("run"), of: params.get("of"), file: params.get("file"), row: params.get("row") };
  const told = await ask("conversation", place, signal);
  if (!is()) return null;
  const page = new TrajectoryPage(root, params, place, told, signal);
  page.build();
  return {
    title: told.id,
    keys: {
      j: () => page.turn(1), k: () => page.turn(-1), f: () => page.foldAll(), "[": () => page.other(-1), "]": () => page.other(1),
      c: () => page.tab(page.params.get("tab") === "tokens" ? "" : "tokens"),
      g: () => { if (page.group) location.hash = page.group; },
    },
    end: () => page.end(),
  };
}

class TrajectoryPage {
  constructor(root, params, place, told, signal) {
    Object.assign(this, { root, params, place, told, signal });
    this.open = new Set();
    this.isUnfolded = false;
    this.at = 0;
    const { listed } = told;
    this.group = place.of ? null : address("group", { run: place.run, step: listed.step, task: listed.task });
  }

  build() {
    const { told, place } = this, isTokens = this.params.get("tab") === "tokens";
    const { listed } = told;
    fill(this.root,
      h("h1", {}, told.task.id, h("span", { class: "soft" }, ` #${told.sibling}, step ${told.step}`)),
      h("p", { class: "line" }, chip(told.verdict, STYLE_OF[told.verdict]), " ",
        chip(words(told.bucket), told.bucket === "kept" ? "good" : "quiet"), " ", h("span", {}, told.why)),
      h("details", { class: "fold" }, h("summary", {}, "facts"), facts(told)),
      told.timeline && h("details", { class: "fold", id: "times" }, h("summary", {}, `times: ${seconds(told.times.seconds)}`),
        h("div", { class: "charts" }, figure(told.timeline)),
        !place.of && isAnswered("timeline") && h("p", {}, h("a", { href: address("timeline", { run: place.run, step: stepOf(place.file) }) }, "who waited when in its step"))),
      h("p", { class: "links" },
        h("button", { class: isTokens ? "" : "on", "aria-pressed": String(!isTokens), onclick: () => this.tab("") }, "conversation"),
        h("button", { class: isTokens ? "on" : "", "aria-pressed": String(isTokens), onclick: () => this.tab("tokens") }, `${number(told.num_tokens)} tokens`),
        this.group && h("a", { href: this.group }, "its group"),
        !place.of && isAnswered("task") && h("a", { href: address("task", { run: place.run, task: listed.task }) }, "this task over the steps"),
        this.params.has("i") && [h("button", { onclick: () => this.other(-1), "aria-label": "previous of the list" }, "←"),
          h("button", { onclick: () => this.other(1), "aria-label": "next of the list" }, "→")],
        !kept && h("a", { href: `export?${new URLSearchParams({ run: place.run, ...(place.of ? { of: place.of } : {}), at: `${place.file}:${place.row}` })}` }, "export"),
        told.replay && h("code", { class: "replay", title: "computes the loss of this step again" }, told.replay)),
      h("p", { class: "links try" }, h("span", {}, "go on from its end:"), h("code", { class: "replay", id: "try" }, told.chat)),
      this.layout(),
      this.box = h("div", { class: isTokens ? "turns tokens" : "turns", tabindex: "0", role: "region", "aria-label": isTokens ? "tokens" : "turns" }));
    if (isTokens) {
      this.tokens = new TokenView(this.box, this.place, told, this.signal);
    } else {
      const items = [() => this.asked(), ...told.turns.map((turn, i) => () => this.turnOf(turn, i))];
      this.list = new LongList(this.box, { count: items.length, height: 160, varies: true, render: (i) => items[i]() });
    }
  }

  // Who wrote which part, drawn to scale; a click goes there.
  layout() {
    const bar = h("div", { class: "origins", role: "img", "aria-label": "who wrote which part of the trajectory" });
    const total = this.told.num_tokens || 1;
    const steps = joined(this.told.segments, 400);
    for (const [start, end, origin] of steps) {
      const part = bar.appendChild(h("i", { class: origin, title: `${origin}, tokens ${start} to ${end}` }));
      part.style.width = `${100 * (end - start) / total}%`;
    }
    bar.addEventListener("click", (event) => {
      const box = bar.getBoundingClientRect(), token = total * (event.clientX - box.left) / box.width;
      if (this.tokens) return this.tokens.show(Math.floor(token));
      const turn = this.told.turns.findIndex((one) => one.end >= token);
      this.list.begin(turn < 0 ? this.told.turns.length : turn + 1);
    });
    return bar;
  }

  asked() {
    const { told } = this;
    return h("div", { class: "turn asked" }, h("div", { class: "who" }, `question (${told.task.source})`), this.text(told.task.question, "q"),
      h("div", { class: "who" }, "expected answer"), this.text(String(told.task.answer), "a"),
      h("details", { class: "fold", ...this.fold("prompt") }, h("summary", {}, "the whole prompt"), this.text(told.prompt, "p")));
  }

  turnOf(turn, i) {
    const ran = [...turn.ran];
    return h("div", { class: "turn", id: `turn${i + 1}` },
      h("div", { class: "who" }, `turn ${i + 1}: the policy`, turn.written && `, ${seconds(turn.written[1] - turn.written[0])}`, " ", this.tryFrom(i + 1)),
      turn.pieces.map((piece, k) => typeof piece === "string" ? (piece.trim() ? this.text(piece.replace(/^\n+|\n+$/g, ""), `${i}.${k}`) : null) : this.call(piece, `${i}.${k}`, ran.shift())),
      turn.cut && h("div", { class: "who bad" }, "cut here by the token limit"));
  }

  // The command that lets the policy write this turn anew, from the tokens that stand before it.
  tryFrom(turn) {
    const key = `try ${turn}`, command = h("code", { class: "replay", hidden: !this.open.has(key) }, `${this.told.chat}@${turn}`);
    const button = h("button", { class: "small", "aria-expanded": String(this.open.has(key)), "aria-label": `try turn ${turn} anew`, onclick: () => {
      if (this.open.has(key)) this.open.delete(key); else this.open.add(key);
      command.hidden = !this.open.has(key);
      button.setAttribute("aria-expanded", String(this.open.has(key)));
    } }, "try");
    return [button, " ", command];
  }

  fold(key) {
    return { open: this.isUnfolded !== this.open.has(key), ontoggle: (event) => this.folded(key, event.target.open) };
  }

  folded(key, isOpen) {
    if (isOpen !== this.isUnfolded) this.open.add(key); else this.open.delete(key);
  }

  call(call, key, ran) {
    const first = call.arguments.map(([, text]) => text).join(" ").split("\n").find((line) => line.trim()) ?? "";
    return h("details", { class: `call ${call.is_error ? "error" : ""}`, ...this.fold(key) },
      h("summary", {}, h("span", { class: "soft" }, `calls ${call.name} `), chip(call.status, call.is_error ? "bad" : "good"),
        ran !== undefined && ran !== null && h("span", { class: "soft took" }, seconds(ran)), h("code", { class: "peek" }, first.slice(0, 160))),
      call.arguments.map(([name, text], k) => [name === null ? null : h("div", { class: "who" }, name), this.text(text, `${key}a${k}`)]),
      h("div", { class: "result" }, this.text(call.result, `${key}r`)));
  }

  text(text, key) {
    const made = h("pre"), isLong = text.length > LONG && !this.open.has(`long ${key}`);
    const shown = isLong ? text.slice(0, LONG) : text;
    marked(made, shown);
    if (!isLong) return made;
    const more = h("button", { onclick: () => { this.open.add(`long ${key}`); more.remove(); made.replaceChildren(); marked(made, text); } },
      `${number(text.length - LONG)} more characters`);
    return [made, more];
  }

  foldAll() {
    if (!this.list) return;
    this.isUnfolded = !this.isUnfolded;
    this.open.clear();
    this.list.refresh();
  }

  turn(by) {
    if (this.tokens) return this.tokens.page(by);
    this.at = Math.max(0, Math.min(this.told.turns.length, this.list.at(this.box.scrollTop + 1) + by));
    this.list.begin(this.at);
  }

  tab(tab) {
    const params = Object.fromEntries(this.params);
    location.hash = address("trajectory", { ...params, tab });
  }

  async other(by) {
    if (!this.params.has("i")) return;
    const i = Number(this.params.get("i")) + by;
    if (i < 0) return;
    const asked = listParams(this.params);
    const { rows } = await ask("list", { ...asked, from: i, num: 1 }, this.signal);
    if (rows.length) location.hash = address("trajectory", { ...asked, file: rows[0].file, row: rows[0].row, i, tab: this.params.get("tab") });
  }

  end() {
    this.list?.end();
    this.tokens?.end();
  }
}

function facts(told) {
  const { listed } = told, range = told.advantage;
  const rows = {
    "reward": `${number(told.reward)}${told.method ? ` (${told.method})` : ""}`,
    "finished": words(told.finish ?? ""),
    "penalty": told.penalty ? `tool errors ${number(told.penalty.error)} + answer format ${number(told.penalty.format)}` : "–",
    "advantage": Array.isArray(range) ? `${signed(range[0])} to ${signed(range[1])}, by token` : signed(range),
    "tokens": `${number(told.num_tokens)}, of these ${number(listed.policy_tokens)} by the policy`,
    "tool calls": `${listed.calls}, ${listed.errors} with an error`,
    "written by": `policy version ${told.version}, stage ${told.stage}`,
    "seed, step, sibling": (told.seed ?? []).join(", "),
    ...(told.times ? { "began": new Date(1000 * told.times.began).toISOString().replace("T", " ").slice(0, 19) + " UTC",
      "took": `${seconds(told.times.seconds)}: policy ${seconds(told.times.writing_s)}, tools ${seconds(told.times.tools_s)}`
        + (told.times.queued_s ? `, of the policy's ${seconds(told.times.queued_s)} for a place` : "") } : {}),
  };
  return h("dl", { class: "facts" }, Object.entries(rows).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function stepOf(file) {
  return Number(file.replace("step_", ""));
}

// Answers stand out; they are found in the text itself and stay text.
function marked(element, text) {
  let end = 0;
  for (const found of text.matchAll(/<answer>[\s\S]*?<\/answer>/g)) {
    element.append(text.slice(end, found.index));
    element.append(h("mark", {}, found[0]));
    end = found.index + found[0].length;
  }
  element.append(text.slice(end));
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
