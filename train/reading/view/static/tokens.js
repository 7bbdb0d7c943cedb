// Tokens with their numbers: a strip of the whole trajectory, and the text with each token shaded.

import { ask } from "./api.js";
import { fill, h, number, signed } from "./dom.js";
import { kept } from "./kept.js";
import { LazyBlocks } from "./virtual.js";

const BLOCK = 2048, SHORTEST = 64, PAGE = 4096; // tokens of a block, of the shortest rest, and of an answer of the server
const NAMES = { prompt: "prompt", policy: "policy", tool: "tool output" };
// `of` is how strongly a token is shaded, `strip` which measure the strip shows, of which `top` fills it.
const SHADES = {
  logprob: { name: "log-prob (rollout)", of: (t) => t.logprob === null ? null : Math.min(1, -t.logprob / 6) },
  learner: { name: "log-prob (learner)", learner: true, of: (t) => t.learner === null ? null : Math.min(1, -t.learner / 6) },
  gap: { name: "learner minus rollout", learner: true, strip: "gap", top: 2, of: (t) => gapOf(t) === null ? null : Math.min(1, Math.abs(gapOf(t))), sign: gapOf },
  ratio: { name: "ratio", learner: true, strip: "ratio", top: 0.5, of: (t) => t.ratio === null ? null : Math.min(1, Math.abs(Math.log(t.ratio)) / 0.3), sign: (t) => t.ratio - 1 },
  clip: { name: "clipped", learner: true, strip: "clip", top: 1, of: (t) => t.code ? 1 : null, sign: (t) => t.code === 1 ? -1 : 1 },
  entropy: { name: "entropy", learner: true, strip: "entropy", top: 4, of: (t) => t.entropy === null ? null : Math.min(1, t.entropy / 3) },
  advantage: { name: "advantage", of: (t) => t.advantage === null ? null : Math.min(1, Math.abs(t.advantage) / 2), sign: (t) => t.advantage },
  mask: { name: "loss mask", of: (t) => t.origin === "policy" ? 0.6 : null },
  version: { name: "policy version", of: (t) => t.version === null ? null : 0.25 + 0.5 * (t.version % 2) },
};
const CODES = ["not clipped", "clipped, advantage below 0", "clipped, advantage above 0"];
const WITHOUT = "The learner did not use this trajectory, or its run recorded no values of it: only the rollout's values are shown.";
const WITH = "Log-probs of the rollout are exact; the learner's ratio and gap are right to half a percent, its entropy to a few percent.";
const KEPT = "In an exported file, values of tokens have four digits.";

function gapOf(token) {
  return token.learner === null || token.logprob === null ? null : token.learner - token.logprob;
}

export class TokenView {
  // chosen: called with the number of a token that a person chose.
  constructor(box, place, told, signal, chosen) {
    Object.assign(this, { box, place, told, signal, chosen });
    this.total = told.num_tokens;
    this.pages = new Map();
    this.shade = "logprob";
    this.canvas = h("canvas", { class: "strip", role: "img", "aria-label": "the value of the shade over the whole trajectory; a click goes there" });
    this.detail = h("div", { class: "pointed", id: "token" }, "point at a token, or use the arrow keys");
    this.choice = h("select", { "aria-label": "shade of the tokens", onchange: () => {
      this.shade = this.choice.value;
      this.list.refresh();
      this.paint();
    } }, Object.entries(SHADES).map(([key, shade]) => h("option", { value: key, disabled: shade.learner }, shade.name)));
    this.about = h("p", { class: "soft small", id: "about" });
    this.top = h("div", { class: "tokenbar" }, h("div", {}, h("label", {}, "shade: ", this.choice), this.detail), this.canvas, this.about);
    box.before(this.top);
    this.blocks = blocksOf(told.segments);
    this.list = new LazyBlocks(box, { count: this.blocks.length, height: (i) => 30 + (this.blocks[i].end - this.blocks[i].start), render: (i) => this.block(i) });
    this.canvas.addEventListener("click", (event) => {
      const at = this.canvas.getBoundingClientRect();
      this.show(Math.floor(this.total * (event.clientX - at.left) / at.width));
    });
    box.addEventListener("pointerover", (event) => this.point(event.target));
    box.addEventListener("click", (event) => this.point(event.target, true));
    this.redraw = new ResizeObserver(() => this.paint());
    this.redraw.observe(this.canvas);
    this.strip();
  }

  async strip() {
    this.parts = await ask("strip", { ...this.place, bins: Math.min(1200, Math.max(200, this.canvas.clientWidth)) }, this.signal).catch(() => null);
    const learned = Boolean(this.parts?.measures.gap);
    for (const option of this.choice.options) option.disabled = Boolean(SHADES[option.value].learner) && !learned;
    this.about.textContent = kept ? KEPT : learned ? WITH : WITHOUT;
    this.paint();
  }

  paint() {
    const { canvas, parts } = this;
    if (!parts || !canvas.clientWidth) return;
    const scale = devicePixelRatio || 1, width = canvas.clientWidth, height = 56;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    const color = { policy: style.getPropertyValue("--c0"), tool: style.getPropertyValue("--c2"), prompt: style.getPropertyValue("--c7") };
    pen.scale(scale, scale);
    const { strip = "surprise", top = 8 } = SHADES[this.shade], measure = parts.measures[strip] ?? parts.measures.surprise;
    measure.max.forEach((greatest, i) => {
      const x = width * parts.edges[i] / parts.total, w = Math.max(1, width * (parts.edges[i + 1] - parts.edges[i]) / parts.total);
      pen.fillStyle = color[parts.origins[i]] ?? color.prompt;
      pen.fillRect(x, height - 6, w, 6);
      if (greatest === null) return;
      pen.globalAlpha = 0.4;
      pen.fillRect(x, height - 8 - 46 * Math.min(1, greatest / top), w, 46 * Math.min(1, greatest / top));
      pen.globalAlpha = 1;
      pen.fillRect(x, height - 8 - 46 * Math.min(1, measure.mean[i] / top), w, 46 * Math.min(1, measure.mean[i] / top));
    });
    canvas.dataset.painted = strip;
  }

  page(by) {
    scrollBy(0, by * innerHeight * 0.7);
  }

  tokensAt(number) {
    if (!this.pages.has(number)) {
      const asked = ask("tokens", { ...this.place, from: number * PAGE, to: (number + 1) * PAGE }, this.signal);
      this.pages.set(number, asked);
      asked.then((told) => { asked.told = told; }, () => this.pages.delete(number));
    }
    return this.pages.get(number);
  }

  block(i) {
    const { start, end } = this.blocks[i], pages = [];
    for (let page = Math.floor(start / PAGE); page <= Math.floor((end - 1) / PAGE); page++) pages.push(this.tokensAt(page));
    return pages.every((page) => page.told) ? this.filled(i) : Promise.all(pages).then(() => this.filled(i));
  }

  token(i) {
    const told = this.pages.get(Math.floor(i / PAGE))?.told, k = i - told?.start;
    if (!told) return null;
    return { i, id: told.ids[k], text: told.texts?.[k], logprob: told.logprobs[k] ?? null, origin: told.origins[k],
      version: told.versions[k], advantage: told.advantages[k],
      learner: told.learner?.logprobs[k] ?? null, importance: told.learner?.importance[k] ?? null,
      ratio: told.learner?.ratios[k] ?? null, entropy: told.learner?.entropies[k] ?? null, code: told.learner?.codes[k] ?? null };
  }

  filled(i) {
    const { start, end, origin, isFirst } = this.blocks[i], shade = SHADES[this.shade];
    const turn = this.told.turns.findIndex((one) => one.start <= start && start < one.end);
    const sequence = this.told.starts.length > 1 && isFirst ? this.told.starts.indexOf(start) + 1 : 0;
    const name = sequence ? `sequence ${sequence} of ${this.told.starts.length}: prompt`
      : origin === "policy" && turn >= 0 ? `turn ${turn + 1}: policy` : NAMES[origin] ?? origin;
    const text = h("div", { class: "chunk" });
    for (let k = start; k < end; k++) {
      const token = this.token(k), strength = shade.of(token);
      const made = h("span", { class: `tok ${token.origin} ${k === this.at ? "at" : ""}`, "data-token": k });
      if (strength !== null && strength > 0.02) {
        const base = shade.sign ? (shade.sign(token) < 0 ? "--c1" : "--c2") : "--c0";
        made.style.background = `color-mix(in srgb, var(${base}) ${Math.round(strength * 70)}%, transparent)`;
      }
      made.textContent = token.text === undefined ? `${token.id} ` : shown(token.text);
      text.append(made);
    }
    return h("div", { class: `turn of-${origin}` }, isFirst && h("div", { class: "who" }, `${name} · tokens ${number(start)} to ${number(this.blocks[i].last - 1)}`), text);
  }

  step(by) {
    return this.show(Math.max(0, Math.min(this.total - 1, (this.at ?? -1) + by)), "nearest");
  }

  // Scrolls to a token and shows its values.
  async show(i, block = "center") {
    await this.list.fill(this.list.root.children[this.blocks.findIndex((one) => i < one.end)]);
    const element = this.box.querySelector(`[data-token="${i}"]`);
    element?.scrollIntoView({ block });
    this.point(element, true);
  }

  // Shows the values of a token; the address names it where a person chose it.
  point(element, isChosen = false) {
    const i = Number(element?.dataset?.token ?? NaN), t = Number.isNaN(i) ? null : this.token(i);
    if (!t) return;
    this.box.querySelector(".tok.at")?.classList.remove("at");
    element.classList.add("at");
    this.at = i;
    if (isChosen) this.chosen(i);
    const chance = t.logprob === null ? "" : `, probability ${(100 * Math.exp(t.logprob)).toPrecision(3)}%`;
    this.detail.textContent = `token ${number(t.i)}: id ${t.id}${t.text === undefined ? "" : ` ${JSON.stringify(t.text)}`}, ${t.origin}, `
      + `log-prob ${t.logprob === null ? "–" : Number(t.logprob.toPrecision(7))}${chance}, advantage ${t.advantage === null ? "–" : signed(t.advantage)}, `
      + `${t.origin === "policy" ? "carries loss" : "no loss"}, version ${t.version ?? "–"}`
      + (t.learner === null ? "" : `; learner: log-prob ${t.learner.toPrecision(4)}, importance ${t.importance.toFixed(3)}, ratio ${t.ratio.toFixed(3)}, `
        + `${CODES[t.code]}, entropy ${t.entropy === null ? "–" : t.entropy.toPrecision(2)}`);
  }

  end() {
    this.redraw.disconnect();
    this.list.end();
  }
}

function shown(text) {
  return text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥");
}

// The segments as blocks of BLOCK tokens; a block never begins within the last tokens of a segment, which are the
// header of the next role.
function blocksOf(segments) {
  const blocks = [];
  for (const [start, end, origin] of segments) {
    for (let at = start; at < end;) {
      const stop = end - at <= BLOCK + SHORTEST ? end : at + BLOCK;
      blocks.push({ start: at, end: stop, origin, isFirst: at === start, last: end });
      at = stop;
    }
  }
  return blocks;
}
