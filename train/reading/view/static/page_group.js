// A group: its siblings side by side, what Resample-on-Correct weighed, and sums that equal the ledger.

import { address, ask } from "./api.js";
import { chip, fill, h, number, signed, STYLE_OF, table, words } from "./dom.js";
import { isAnswered } from "./kept.js";

const BUCKETS = ["kept", "dropped_positive", "dropped_negative", "no_signal", "failed"];

export async function show({ root, params, signal, is }) {
  const run = params.get("run"), step = params.get("step"), task = params.get("task");
  const told = await ask("group", { run, step, task }, signal);
  const { asked } = told;
  if (!is()) return null;
  const place = (s) => address("trajectory", { run, file: s.file, row: s.row, filter: `task=${task} step=${step}`, sort: "sibling", i: told.siblings.indexOf(s) });
  const cards = h("div", { class: "siblings" }, told.siblings.map((s) => card(s, place(s), run, signal)));
  let at = -1;
  const move = (by) => {
    at = Math.max(0, Math.min(told.siblings.length - 1, at + by));
    cards.children[at].scrollIntoView({ block: "nearest", inline: "nearest" });
    cards.children[at].querySelector("a").focus();
  };
  fill(root,
    h("h1", {}, told.name, h("span", { class: "soft" }, ` step ${told.step}`)),
    asked && h("div", { class: "turn asked", id: "question" }, h("pre", {}, asked.question),
      h("div", { class: "who" }, "expected answer"), h("pre", {}, String(asked.answer))),
    h("p", {}, drawText(told)),
    h("p", { class: "links" }, isAnswered("task") && h("a", { href: address("task", { run, task }) }, "this task over the steps"),
      h("a", { href: address("list", { run, filter: `task=${task}` }) }, "all its trajectories"),
      h("a", { href: address("list", { run, filter: `step=${step}` }) }, "all of the step")),
    table(["sibling", "verdict", "reward", "p_err", "p_format", "weight", "share", "fate", "advantage", "tokens", "calls", "errors"],
      told.siblings.map((s) => [h("a", { href: place(s) }, `#${s.sibling}`), chip(s.verdict, STYLE_OF[s.verdict]), number(s.reward),
        number(s.penalty_error), number(s.penalty_format), number(s.weight), s.share === null ? "–" : `${(100 * s.share).toFixed(1)}%`,
        words(s.bucket), signed(s.advantage), number(s.tokens), number(s.calls), number(s.errors)]), "siblings"),
    h("h2", {}, "Side by side"), cards,
    h("h2", {}, "Sums"), sums(told));
  return { title: `${told.name}, step ${step}`, keys: { j: () => move(1), k: () => move(-1) } };
}

function drawText({ draw, sums: counts, siblings }) {
  const correct = siblings.filter((s) => s.verdict === "correct").length;
  const text = `${siblings.length} siblings, ${correct} correct; ${counts.kept} kept. `;
  if (counts.no_signal) return `${text}All scored siblings have the same reward, so there is no advantage and nothing to draw.`;
  if (!draw.happened) return `${text}No more than the learner takes, so none was drawn.`;
  if (draw.mode === "paper") return `${text}Correct siblings were drawn with weight 1 / (${draw.eps} + p_err + p_format), wrong ones all alike; share is the weight's among the correct ones.`;
  return `${text}Drawn in mode ${draw.mode ?? "unknown (no config.toml)"}.`;
}

function card(s, href, run, signal) {
  const body = h("div", { class: "inside" });
  const fold = h("details", { ontoggle: () => load() }, h("summary", {}, "read"), body);
  const load = async () => {
    if (body.childNodes.length) return;
    body.textContent = "…";
    try {
      const told = await ask("conversation", { run, file: s.file, row: s.row }, signal);
      fill(body, told.turns.map((turn, i) => [h("div", { class: "who" }, `turn ${i + 1}`), turn.pieces.map((piece) =>
        typeof piece === "string" ? (piece.trim() ? h("pre", {}, piece.trim().slice(0, 4000)) : null)
          : h("details", { class: `call ${piece.is_error ? "error" : ""}` }, h("summary", {}, `${piece.name} `, chip(piece.status, piece.is_error ? "bad" : "good")),
            piece.arguments.map(([, text]) => h("pre", {}, text.slice(0, 4000))), h("pre", { class: "result" }, piece.result.slice(0, 4000))))]));
    } catch (error) {
      body.textContent = error.message;
    }
  };
  return h("article", { class: `sibling ${s.bucket}` },
    h("h3", {}, h("a", { href }, `#${s.sibling}`), " ", chip(s.verdict, STYLE_OF[s.verdict]), " ", chip(words(s.bucket), s.bucket === "kept" ? "good" : "quiet")),
    h("dl", { class: "facts" },
      h("dt", {}, "reward"), h("dd", {}, number(s.reward)),
      h("dt", {}, "penalties"), h("dd", {}, s.penalty_error === null ? "–" : `${number(s.penalty_error)} + ${number(s.penalty_format)}`),
      h("dt", {}, "weight"), h("dd", {}, number(s.weight)),
      h("dt", {}, "advantage"), h("dd", {}, signed(s.advantage)),
      h("dt", {}, "tokens"), h("dd", {}, `${number(s.tokens)}${s.truncated ? " (cut)" : ""}`),
      h("dt", {}, "calls"), h("dd", {}, `${s.calls}, ${s.errors} errors`)),
    h("p", { class: "small" }, s.why), fold);
}

function sums({ sums: mine, step_sums: ofStep, ledger, step }) {
  const names = [...new Set([...BUCKETS, ...Object.keys(mine), ...Object.keys(ofStep)])].filter((name) => name !== "generated");
  const row = (label, counts) => [label, ...names.map((name) => number(counts[name] ?? 0)), number(counts.generated)];
  const rows = [row("this group", mine), row(`all groups of step ${step}`, ofStep)];
  if (ledger) rows.push(row("ledger (metrics.jsonl)", ledger));
  const equal = ledger && [...BUCKETS, "generated"].every((name) => ledger[name] === ofStep[name]);
  return [table(["", ...names.map(words), "generated"], rows, "sums"),
    h("p", { id: "ledger", class: ledger ? (equal ? "good" : "bad") : "soft" },
      ledger ? (equal ? "The rows' sums equal the step's ledger." : "The rows' sums differ from the step's ledger.") : "metrics.jsonl has no ledger of this step.")];
}
