// A conversation: the policy's text, its programs and their outputs, all open; long ones are cut with a toggle.

import { chip, copyButton, h, number, seconds, STYLE_OF } from "./dom.js";

const MOST_LINES = 40, HEAD_LINES = 30, TAIL_LINES = 8; // of a program and of an output
const MOST_NAME = 300; // characters of the name and of the status of a call
const MOST_CHARACTERS = 8000, HEAD_CHARACTERS = 6000, TAIL_CHARACTERS = 1500;

// The turns of a trajectory as elements. `more(number)` makes what the head of a turn has besides.
export function turnsOf(told, more = () => null) {
  const last = told.turns.length - 1;
  return told.turns.map((turn, i) => {
    const ran = [...turn.ran], answers = i === last && told.given ? answerAt(turn.pieces, told.given) : null;
    return h("div", { class: "turn", "data-turn": i + 1, role: "group", "aria-label": `turn ${i + 1}` },
      h("div", { class: "who" }, `turn ${i + 1}: policy`, turn.written && ` · ${seconds(turn.written[1] - turn.written[0])}`, more(i + 1)),
      turn.pieces.map((piece, k) => {
        if (typeof piece !== "string") return call(piece, ran.shift());
        if (!piece.trim()) return null;
        return longText(piece, { policy: true, answer: answers?.piece === k ? [answers.start, answers.end, STYLE_OF[told.listed.verdict]] : null });
      }),
      turn.cut && h("div", { class: "who bad" }, "cut here by the token limit"));
  });
}

// The piece and the characters of the given answer; null where the last turn does not show it.
function answerAt(pieces, given) {
  for (let piece = pieces.length - 1; piece >= 0; piece--) {
    const text = pieces[piece];
    if (typeof text !== "string") continue;
    const close = text.lastIndexOf("</answer>"), open = close < 0 ? -1 : text.lastIndexOf("<answer>", close);
    if (open >= 0) return { piece, start: open, end: close + "</answer>".length };
    const boxed = text.lastIndexOf(`\\boxed{${given}}`), at = boxed < 0 ? text.lastIndexOf(given) : boxed;
    if (at >= 0) return { piece, start: at, end: at + given.length + (boxed < 0 ? 0 : 8) };
  }
  return null;
}

function call(call, ran) {
  const program = call.arguments.map(([, text]) => text).join("\n");
  return h("div", { class: `call ${call.is_error ? "error" : ""}` },
    h("div", { class: "callhead" }, h("b", {}, call.name.slice(0, MOST_NAME)), chip(call.status.slice(0, MOST_NAME), call.is_error ? "bad" : "good"),
      ran !== undefined && ran !== null && h("span", { class: "soft took" }, seconds(ran)),
      h("span", { class: "copies" }, copyButton(program, "copy program", "copy program"), call.result && copyButton(call.result, "copy output", "copy output"))),
    call.arguments.map(([name, text]) => [name !== null && h("div", { class: "who" }, name.slice(0, MOST_NAME)), longText(text, { style: "program" })]),
    call.result ? longText(call.result, { style: "result" }) : h("div", { class: "who" }, "no output"));
}

// The parts of a text that are shown at first, and how much is hidden between them.
function cutOf(text, policy) {
  const whole = { parts: [[0, text.length]], hidden: "" };
  if (!policy) {
    let lines = 0, headEnd = 0, tailStart = text.length;
    for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) if (++lines === HEAD_LINES) headEnd = at;
    if (++lines > MOST_LINES) {
      for (let k = 0; k < TAIL_LINES; k++) tailStart = text.lastIndexOf("\n", tailStart - 1);
      if (headEnd <= HEAD_CHARACTERS && text.length - tailStart <= TAIL_CHARACTERS) {
        return { parts: [[0, headEnd], [tailStart + 1, text.length]], hidden: `${number(lines - HEAD_LINES - TAIL_LINES)} more lines` };
      }
    }
  }
  const factor = policy ? 3 : 1, head = factor * HEAD_CHARACTERS, tail = factor * TAIL_CHARACTERS;
  if (text.length <= factor * MOST_CHARACTERS) return whole;
  return { parts: [[0, head], [text.length - tail, text.length]], hidden: `${number(text.length - head - tail)} more characters` };
}

// A text that is cut where it is long. `answer` is the start, the end and the style of the given answer in it.
export function longText(text, { style = "", policy = false, answer = null } = {}) {
  if (policy) {
    const start = text.length - text.replace(/^\n+/, "").length;
    text = text.slice(start).replace(/\n+$/, "");
    answer = answer && [answer[0] - start, answer[1] - start, answer[2]];
  }
  const { parts, hidden } = cutOf(text, policy);
  const pre = ([start, end]) => {
    const made = h("pre", { class: style });
    const from = answer ? Math.min(end, Math.max(start, answer[0])) : end, to = answer ? Math.min(end, Math.max(start, answer[1])) : end;
    made.append(text.slice(start, from));
    if (from < to) made.append(h("mark", { class: answer[2] }, text.slice(from, to)));
    made.append(text.slice(to, end));
    return made;
  };
  if (!hidden) return pre(parts[0]);
  const body = h("div", { class: "long" });
  const draw = (isOpen) => {
    const button = h("button", { class: "small more", "aria-expanded": String(isOpen), onclick: () => {
      draw(!isOpen);
      body.querySelector(".more").focus();
    } }, isOpen ? "show less" : hidden);
    body.replaceChildren(...(isOpen ? [pre([0, text.length]), button] : [pre(parts[0]), button, pre(parts[1])]));
  };
  draw(false);
  return body;
}

// Opens or closes every long text of an element.
export function toggleLong(root) {
  const buttons = [...root.querySelectorAll(".more")], open = buttons.some((one) => one.getAttribute("aria-expanded") === "false");
  for (const one of buttons) if (one.getAttribute("aria-expanded") !== String(open)) one.click();
}
