// Tokens with their numbers: a strip of the whole trajectory, and the text with each token shaded.

import { ask } from "./api.js";
import { fill, h, number, signed } from "./dom.js";
import { kept } from "./kept.js";
import { LongList } from "./virtual.js";

const CHUNK = 64, PAGE = 4096;
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
const CODES = ["not clipped", "held by the lower bound", "held by the upper bound"];
const WITHOUT = "The learner did not learn from this trajectory, or its run wrote nothing down of it: there are the rollout's numbers alone.";
const WITH = "Log-probs of the rollout are bit by bit; what the learner made of a token is right to half a percent of ratio and gap, and to a few percent of entropy.";
const KEPT = "In a file that was exported, numbers of tokens have four digits.";

function gapOf(token) {
  return token.learner === null || token.logprob === null ? null : token.learner - token.logprob;
}

export class TokenView {
  constructor(box, place, told, signal) {
    Object.assign(this, { box, place, told, signal });
    this.total = told.num_tokens;
    this.pages = new Map();
    this.shade = "logprob";
    this.canvas = h("canvas", { class: "strip", role: "img", "aria-label": "what the shade shows, of each part of the trajectory; a click goes there" });
    this.detail = h("div", { class: "pointed", id: "token" }, "point at a token, or step through them with the arrow keys");
    this.choice = h("select", { "aria-label": "what the shade shows", onchange: () => {
      this.shade = this.choice.value;
      this.list.refresh();
      this.paint();
    } }, Object.entries(SHADES).map(([key, shade]) => h("option", { value: key, disabled: shade.learner }, shade.name)));
    this.about = h("p", { class: "soft small", id: "about" });
    this.top = h("div", { class: "tokenbar" }, h("label", {}, "shade: ", this.choice), this.canvas, this.detail, this.about);
    box.before(this.top);
    this.list = new LongList(box, { count: Math.ceil(this.total / CHUNK), height: 90, varies: true, render: (i) => this.chunk(i) });
    this.canvas.addEventListener("click", (event) => {
      const at = this.canvas.getBoundingClientRect();
      this.show(Math.floor(this.total * (event.clientX - at.left) / at.width));
    });
    box.addEventListener("pointerover", (event) => this.point(event.target));
    box.addEventListener("click", (event) => this.point(event.target));
    box.addEventListener("keydown", (event) => this.step(event));
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
    this.box.scrollTop += by * this.box.clientHeight * 0.9;
  }

  tokensAt(number) {
    if (!this.pages.has(number)) {
      const asked = ask("tokens", { ...this.place, from: number * PAGE, to: (number + 1) * PAGE }, this.signal);
      this.pages.set(number, asked);
      asked.then((told) => { asked.told = told; }, () => this.pages.delete(number));
    }
    return this.pages.get(number);
  }

  chunk(i) {
    const made = h("div", { class: "chunk" }), asked = this.tokensAt(Math.floor(i * CHUNK / PAGE));
    if (asked.told) this.fillChunk(made, asked.told, i);
    else asked.then((told) => this.fillChunk(made, told, i), () => {});
    return made;
  }

  token(told, k) {
    return { i: told.start + k, id: told.ids[k], text: told.texts?.[k], logprob: told.logprobs[k] ?? null, origin: told.origins[k],
      version: told.versions[k], advantage: told.advantages[k],
      learner: told.learner?.logprobs[k] ?? null, importance: told.learner?.importance[k] ?? null,
      ratio: told.learner?.ratios[k] ?? null, entropy: told.learner?.entropies[k] ?? null, code: told.learner?.codes[k] ?? null };
  }

  fillChunk(element, told, i) {
    const first = i * CHUNK - told.start, shade = SHADES[this.shade];
    fill(element, h("span", { class: "place soft" }, number(i * CHUNK)));
    for (let k = first; k < Math.min(first + CHUNK, told.ids.length); k++) {
      const token = this.token(told, k), strength = shade.of(token);
      const made = h("span", { class: `tok ${token.origin}`, "data-token": token.i });
      if (strength !== null && strength > 0.02) {
        const base = shade.sign ? (shade.sign(token) < 0 ? "--c1" : "--c2") : "--c0";
        made.style.background = `color-mix(in srgb, var(${base}) ${Math.round(strength * 70)}%, transparent)`;
      }
      made.textContent = token.text === undefined ? `${token.id} ` : shown(token.text);
      element.append(made);
      if (token.text?.includes("\n")) element.append(document.createElement("br"));
    }
  }

  step(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.select(Math.max(0, Math.min(this.total - 1, (this.at ?? -1) + by)));
  }

  select(i) {
    this.at = i;
    this.list.show(Math.floor(i / CHUNK));
    this.point(this.box.querySelector(`[data-token="${i}"]`));
  }

  show(i) {
    this.list.begin(Math.floor(i / CHUNK));
    this.at = i;
  }

  point(element) {
    const i = Number(element?.dataset?.token ?? NaN);
    if (Number.isNaN(i)) return;
    const told = this.pages.get(Math.floor(i / PAGE))?.told;
    if (!told) return;
    const t = this.token(told, i - told.start);
    this.box.querySelector(".tok.at")?.classList.remove("at");
    element.classList.add("at");
    this.at = i;
    const chance = t.logprob === null ? "" : `, probability ${(100 * Math.exp(t.logprob)).toPrecision(3)}%`;
    this.detail.textContent = `token ${number(t.i)}: id ${t.id}${t.text === undefined ? "" : ` ${JSON.stringify(t.text)}`}, ${t.origin}, `
      + `log-prob ${t.logprob === null ? "–" : t.logprob}${chance}, advantage ${t.advantage === null ? "–" : signed(t.advantage)}, `
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
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥");
}
