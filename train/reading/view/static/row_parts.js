// What rows of several pages have in common: the question as a link, answers, decisions, headers with their meaning.

import { chip, h, STYLE_OF } from "./dom.js";

export const DECISIONS = {
  kept: ["kept", "The learner used it."],
  dropped_positive: ["dropped (correct)", "Correct, but not drawn by Resample-on-Correct."],
  dropped_negative: ["dropped (wrong)", "Wrong, and not drawn among the wrong siblings."],
  no_signal: ["no signal", "All scored siblings of the group have the same reward, so the advantage is zero."],
  failed: ["failed", "Lost to a failure of the system, so it has no reward."],
  ended_early: ["ended early", "Ended before it was done: its outcome could not change which siblings are kept."],
};
const MEANINGS = {
  question: "the task, and the number of the sibling in its group",
  family: "the source of the task",
  expected: "the expected answer of the task",
  given: "the answer in the last turn of the policy",
  verdict: "whether the given answer is correct",
  decision: "whether the learner used the trajectory, or why not",
  reward: "the reward of the judge",
  advantage: "the reward relative to the siblings; it weights the loss of the tokens",
  tokens: "tokens of prompt, policy and tools; ✂ marks a trajectory that the token limit cut",
  calls: "tool calls that were executed",
  errors: "tool calls that ended with an error",
};

// The question of a row on one line; the name of a task that is withheld.
export function titleOf(row, length = 160) {
  const text = (row.question || row.name || row.id || "").replace(/\s+/g, " ").trim();
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

export function questionLink(row, href, ...more) {
  return h("a", { href, class: "q", title: row.question || row.name || row.id }, titleOf(row), more);
}

// An answer, coloured by its verdict where there is one.
export function answer(text, verdict) {
  if (!text) return h("span", { class: "soft" }, "–");
  return h("code", { class: `answer ${STYLE_OF[verdict] ?? ""}`, title: text }, text.slice(0, 80));
}

export function verdictChip(row) {
  return chip(row.verdict, STYLE_OF[row.verdict]);
}

export function decisionWords(bucket) {
  return DECISIONS[bucket]?.[0] ?? String(bucket).replaceAll("_", " ");
}

export function decisionChip(bucket) {
  const made = chip(decisionWords(bucket), bucket === "kept" ? "good" : "quiet");
  if (DECISIONS[bucket]) made.title = DECISIONS[bucket][1];
  return made;
}

// Names of columns with their meanings, for the head of a table.
export function heads(names) {
  return names.map((name) => h("span", { title: MEANINGS[name] }, name));
}

export function legend(names, withDecisions = false) {
  const entries = names.filter((name) => MEANINGS[name]).map((name) => [name, MEANINGS[name]]);
  if (withDecisions) entries.push(...Object.values(DECISIONS));
  return h("details", { class: "fold legend-of" }, h("summary", {}, "meaning of the columns"),
    h("dl", { class: "facts" }, entries.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)])));
}
