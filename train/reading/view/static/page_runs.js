// All runs: what each has come to. Some chosen ones are drawn into the same curves.

import { address, ask } from "./api.js";
import { fill, h, number } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

export async function show({ root, signal, is }) {
  const chosen = new Set();
  const body = h("tbody"), problem = h("p", { class: "bad" });
  const compare = h("button", { onclick: () => { location.hash = address("overlay", { run: [...chosen] }); } });
  const update = async () => {
    const { runs } = await ask("runs", {}, signal);
    if (!is()) return;
    fill(body, runs.map((run) => row(run, chosen, mark)));
    problem.textContent = runs.map((run) => run.problem).filter(Boolean).join("; ");
    mark();
  };
  const mark = () => {
    compare.disabled = chosen.size < 2;
    compare.textContent = chosen.size < 2 ? "overlay: choose two runs or more" : `overlay ${chosen.size} runs`;
  };
  fill(root, h("h1", {}, "Runs"), h("p", {}, compare), problem,
    h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "runs" }, h("table", { class: "runs" },
      h("thead", {}, h("tr", {}, ["", "run", "steps", "reward", "", "evaluation", "wall time", "status"].map((name, i) =>
        h("th", { scope: "col", class: i > 1 && i < 4 ? "n" : "" }, name || h("span", { class: "hidden" }, i ? "curve" : "choose"))))),
      body)));
  await update();
  return { title: "runs", changed: update };
}

function row(run, chosen, mark) {
  const box = h("input", {
    type: "checkbox", "aria-label": `choose ${run.name}`, checked: chosen.has(run.name),
    onchange: () => { if (box.checked) chosen.add(run.name); else chosen.delete(run.name); mark(); },
  });
  const e = run.evaluation;
  return h("tr", {},
    h("td", {}, box),
    h("td", {}, h("a", { href: address("run", { run: run.name }), title: run.path }, run.name)),
    h("td", { class: "n" }, number(run.steps)),
    h("td", { class: "n" }, number(run.reward)),
    h("td", {}, sparkline(run.curve)),
    h("td", {}, e ? `${e.set} ${number(e.value)}${e.low === null ? "" : ` [${number(e.low)}, ${number(e.high)}]`}` : "–"),
    h("td", {}, run.wall_s === null ? "–" : duration(run.wall_s)),
    h("td", {}, run.status || "–"));
}

function duration(seconds) {
  if (seconds < 90) return `${seconds.toFixed(0)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function sparkline(values) {
  const known = values.map((v, i) => [i, v]).filter(([, v]) => v !== null);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 24");
  svg.setAttribute("aria-hidden", "true");
  if (known.length < 2) return svg;
  const low = Math.min(0, ...known.map(([, v]) => v)), high = Math.max(...known.map(([, v]) => v), low + 1e-9);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", known.map(([i, v]) =>
    `${(2 + 116 * i / (values.length - 1)).toFixed(1)},${(22 - 20 * (v - low) / (high - low)).toFixed(1)}`).join(" "));
  line.setAttribute("fill", "none");
  line.setAttribute("stroke", "var(--c0)");
  line.setAttribute("stroke-width", "1.6");
  svg.append(line);
  return svg;
}
