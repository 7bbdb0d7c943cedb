// Charts from numbers: axes, exact values under the pointer, zoom, log scale and smoothing, alike for every run.
// A chart has all its listeners on its own elements, so that nothing of it stays when its page ends.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { right: 16, top: 12, bottom: 24 };
const TEXT = { "font-size": "11", fill: "var(--soft)" };
const MIN_DRAG = 6; // pixels: less is a click
const views = new Map(); // zoom, scale and hidden series by chart, kept while its page is updated
let smoothing = remembered("smoothing", 0.5);

function remembered(name, otherwise) {
  try {
    const value = Number(localStorage.getItem(name) ?? otherwise);
    return value >= 0 && value < 1 ? value : otherwise;
  } catch { return otherwise; } // a browser may forbid it
}

// Forgets zoom and scale: they belong to a page.
export function clearViews() {
  views.clear();
}

function make(tag, attributes = {}, text = undefined) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function html(tag, style, text = undefined) {
  const element = document.createElement(tag);
  if (style) element.className = style;
  if (text !== undefined) element.textContent = text;
  return element;
}

function button(text, label, action) {
  const element = html("button", "tool", text);
  element.type = "button";
  element.title = label;
  element.setAttribute("aria-label", label);
  element.addEventListener("click", action);
  return element;
}

// The slider for all charts of a page; `page` is the element that has them.
export function smoothingControl(page) {
  const label = html("label", "smoothing", "smoothing "), slider = html("input"), value = html("output", "", smoothing.toFixed(2));
  Object.assign(slider, { type: "range", min: 0, max: 0.99, step: 0.01, value: smoothing });
  slider.addEventListener("input", () => {
    smoothing = Number(slider.value);
    value.textContent = smoothing.toFixed(2);
    try { localStorage.setItem("smoothing", smoothing); } catch { /* a browser may forbid it */ }
    for (const figure of page.querySelectorAll("figure.chart")) figure.redraw();
  });
  label.title = "The weight of an exponential moving average; 0 shows the raw values. The raw line stays visible.";
  label.append(slider, value);
  return label;
}

// A figure of the data of Chart.as_json(): series of x, y and perhaps low and high, and how to show them.
export function chart(given) {
  const data = { ...given, x: [...new Set(given.series.flatMap((one) => one.x))].sort((a, b) => a - b),
    series: given.series.map((one) => ({ ...one, places: new Map(one.x.map((x, i) => [x, i])) })) };
  const view = views.get(data.title) ?? { zoom: null, log: false, hidden: new Set(), at: null };
  views.set(data.title, view);
  const figure = html("figure", data.wide ? "chart wide" : "chart"), head = html("div", "charthead");
  const title = html("h3", "", data.title), tools = html("div", "tools"), plot = html("div", "plot");
  const reset = button("reset zoom", `show all steps of ${data.title}`, () => { view.zoom = null; figure.redraw(); });
  const log = button("log", `logarithmic scale of ${data.title}`, () => { view.log = !view.log; figure.redraw(); });
  if (data.subtitle) title.append(" ", html("span", "unit", data.subtitle));
  tools.append(reset);
  if (!data.stacked) tools.append(log);
  tools.append(button("svg", `save ${data.title} as an SVG file`, () => save(plot.querySelector("svg"), data)));
  head.append(title, tools);
  figure.append(head, legend(data, view, () => figure.redraw()), plot, html("figcaption", "", data.caption));
  figure.redraw = () => {
    const width = plot.clientWidth;
    if (!width) return; // not shown yet: the observer calls again
    reset.hidden = !view.zoom;
    log.setAttribute("aria-pressed", view.log);
    const hadFocus = plot.firstChild === document.activeElement && plot.firstChild;
    plot.replaceChildren(drawn(data, view, width, data.wide ? 250 : 210, figure));
    if (hadFocus) plot.firstChild.focus();
  };
  let before = 0;
  new ResizeObserver(() => { if (plot.clientWidth !== before) { before = plot.clientWidth; figure.redraw(); } }).observe(plot);
  return figure;
}

// Names and last values; a click hides a series.
function legend(data, view, redraw) {
  const list = html("div", "keys");
  for (const one of data.series) {
    const at = one.y.findLastIndex((y) => y !== null), last = at < 0 ? "–" : formatValue(one.y[at], data.unit);
    const late = at >= 0 && !one.dots && one.x[at] < data.x.at(-1) ? `${data.over} ${one.x[at]}: ` : "";
    const alone = data.series.length === 1, key = html(alone ? "span" : "button", "key"), mark = html("b", one.dots ? "dot" : "");
    mark.style.background = `var(--c${one.color})`;
    key.append(mark, one.label && `${one.label} `);
    if (!data.stacked) key.append(late, html("strong", "", last));
    list.append(key);
    if (alone) continue;
    key.type = "button";
    key.setAttribute("aria-pressed", !view.hidden.has(one.label));
    key.addEventListener("click", () => {
      if (!view.hidden.delete(one.label)) view.hidden.add(one.label);
      key.setAttribute("aria-pressed", !view.hidden.has(one.label));
      redraw();
    });
  }
  return list;
}

// Weighted means of all values up to each one; a gap stays a gap.
export function smoothed(values, weight) {
  let mean = 0, total = 0;
  return values.map((y) => {
    if (y === null) return null;
    mean = weight * mean + (1 - weight) * y;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

function drawn(data, view, width, height, figure) {
  const svg = make("svg", { class: "rc", viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0",
    "aria-label": `${data.title}: ${data.series.map((one) => `${one.label} ${formatValue(one.y.findLast((y) => y !== null) ?? null, data.unit)}`).join(", ")}` });
  const shown = data.series.filter((one) => !view.hidden.has(one.label));
  const scale = scaleOf(data, shown, view, width, height);
  if (!scale) {
    svg.append(make("text", { ...TEXT, x: width / 2, y: height / 2, "text-anchor": "middle" }, "no data"));
    return svg;
  }
  drawAxes(svg, data, scale);
  const wide = scale.right - scale.left + 12; // a little more, for dots at the ends
  const inside = make("svg", { x: scale.left - 6, y: 0, width: wide, height, viewBox: `${scale.left - 6} 0 ${wide} ${height}`, overflow: "hidden" });
  if (data.stacked) drawBars(inside, data, shown, scale);
  else for (const one of shown) (one.dots ? drawDots : drawLine)(inside, data, one, scale);
  svg.append(inside);
  follow(svg, data, shown, view, scale, figure);
  return svg;
}

function valueAt(one, x) {
  return one.y[one.places.get(x)] ?? null;
}

function scaleOf(data, shown, view, width, height) {
  const xs = data.x, half = data.stacked ? (xs.length > 1 ? (xs[1] - xs[0]) / 2 : 0.5) : 0;
  if (!xs.length || !shown.length) return null;
  const [from, to] = view.zoom ?? [xs[0] - half, Math.max(xs.at(-1) + half, xs[0] + half + (xs.length === 1 && !half ? 1 : 0))];
  const values = [], within = (x) => x >= from && x <= to;
  if (data.stacked) values.push(...xs.filter(within).map((x) => shown.reduce((sum, one) => sum + (valueAt(one, x) ?? 0), 0)));
  else for (const one of shown) one.x.forEach((x, i) => { if (within(x)) values.push(one.y[i], one.low?.[i] ?? null, one.high?.[i] ?? null); });
  const log = view.log && !data.stacked, known = values.filter((v) => v !== null && (!log || v > 0));
  if (!known.length) return null;
  const min = known.reduce((a, b) => Math.min(a, b)), max = known.reduce((a, b) => Math.max(a, b));
  const hasTop = data.top !== null && max <= data.top && !view.zoom;
  const ticks = log ? logTicks(min, max) : niceTicks(data.stacked || hasTop || (min >= 0 && min < 0.5 * max) ? Math.min(0, min) : min, hasTop ? data.top : max, 4);
  const low = log ? min / 1.1 : ticks[0], high = log ? max * 1.1 : hasTop ? data.top : ticks.at(-1);
  const texts = ticks.map((tick) => formatTick(tick, data.unit));
  const left = 12 + 6.4 * Math.max(...texts.map((text) => text.length)), right = width - MARGIN.right, floor = height - MARGIN.bottom;
  const of = log ? Math.log10 : (v) => v;
  return {
    left, right, floor, from, to, log, width, ticks: ticks.map((tick, k) => [tick, texts[k]]).filter(([tick]) => tick >= low && tick <= high * 1.0001),
    x: (x) => left + (right - left) * (x - from) / (to - from),
    y: (y) => floor - (floor - MARGIN.top) * (of(log ? Math.max(y, low) : y) - of(low)) / (of(high) - of(low) || 1),
    xAt: (px) => from + (to - from) * (px - left) / (right - left),
  };
}

function drawAxes(svg, data, scale) {
  for (const [tick, text] of scale.ticks) {
    const y = scale.y(tick).toFixed(1);
    svg.append(make("line", { x1: scale.left, x2: scale.right, y1: y, y2: y, stroke: "var(--line)" }),
      make("text", { ...TEXT, x: scale.left - 7, y: Number(y) + 4, "text-anchor": "end" }, text));
  }
  svg.append(make("line", { x1: scale.left, x2: scale.right, y1: scale.floor, y2: scale.floor, stroke: "var(--soft)", "stroke-width": "0.8" }));
  const ticks = niceTicks(scale.from, scale.to, Math.max(2, Math.floor((scale.right - scale.left) / 90)))
    .filter((tick) => tick >= scale.from && tick <= scale.to && Number.isInteger(tick));
  ticks.forEach((tick, k) => {
    const x = scale.x(tick), anchor = x > scale.width - 30 ? "end" : k === 0 && x < scale.left + 20 ? "start" : "middle";
    svg.append(make("text", { ...TEXT, x: (anchor === "end" ? Math.min(x + 10, scale.width - 2) : x).toFixed(1), y: scale.floor + 16, "text-anchor": anchor },
      k === 0 ? `${data.over} ${tick.toLocaleString("en")}` : tick.toLocaleString("en")));
  });
  for (const [at, name] of data.marks) {
    if (at < scale.from || at > scale.to) continue;
    const x = scale.x(at), late = x > (scale.left + scale.right) / 2;
    svg.append(make("line", { x1: x, x2: x, y1: MARGIN.top - 4, y2: scale.floor, stroke: "var(--soft)", "stroke-dasharray": "2 3", "stroke-width": "0.8" }),
      make("text", { ...TEXT, x: x + (late ? -4 : 4), y: MARGIN.top + 4, "text-anchor": late ? "end" : "start" }, name));
  }
}

function drawLine(svg, data, one, scale) {
  const color = `var(--c${one.color})`, line = (values, more) => {
    const path = make("path", { d: pathOf(one.x, values, scale), fill: "none", stroke: color, "stroke-linejoin": "round", "stroke-linecap": "round", ...more });
    svg.append(path);
  };
  if (one.low) {
    const at = one.x.map((x, i) => i).filter((i) => one.low[i] !== null);
    const edge = (i, y) => `${scale.x(one.x[i]).toFixed(1)},${scale.y(y).toFixed(1)}`;
    svg.append(make("polygon", { points: [...at.map((i) => edge(i, one.high[i])), ...at.reverse().map((i) => edge(i, one.low[i]))].join(" "), fill: color, opacity: "0.15" }));
  }
  if (smoothing > 0 && data.over === "step") {
    line(one.y, { "stroke-width": "1.2", opacity: "0.3" });
    line(smoothed(one.y, smoothing), { "stroke-width": "2", class: "curve" });
  } else line(one.y, { "stroke-width": "1.8", class: "curve" });
}

function pathOf(xs, values, scale) {
  let path = "", open = false;
  values.forEach((y, i) => {
    if (y === null || (scale.log && y <= 0)) { open = false; return; }
    path += `${open ? "L" : "M"}${scale.x(xs[i]).toFixed(1)},${scale.y(y).toFixed(1)}${open ? "" : "h.01"}`;
    open = true;
  });
  return path;
}

function drawDots(svg, data, one, scale) {
  const color = `var(--c${one.color})`;
  svg.append(make("path", { d: pathOf(one.x, one.y, scale), fill: "none", stroke: color, "stroke-width": "1", "stroke-dasharray": "3 3", opacity: "0.6" }));
  one.y.forEach((y, i) => {
    if (y === null) return;
    const x = scale.x(one.x[i]);
    if ((one.low?.[i] ?? null) !== null && one.high[i] !== null) {
      const low = scale.y(one.low[i]), high = scale.y(one.high[i]);
      svg.append(make("path", { d: `M${x - 4},${low}h8M${x},${low}V${high}M${x - 4},${high}h8`, stroke: color, "stroke-width": "1.4", fill: "none" }));
    }
    svg.append(make("circle", { cx: x, cy: scale.y(y), r: 3.6, fill: color, stroke: "var(--paper)" }));
  });
}

function drawBars(svg, data, shown, scale) {
  const xs = data.x, step = xs.length > 1 ? xs[1] - xs[0] : 1, wide = Math.max(0.6, (scale.x(xs[0] + step) - scale.x(xs[0])) * 0.86);
  const floors = xs.map(() => 0);
  for (const one of shown) {
    let path = "";
    one.y.forEach((y, i) => {
      if (!y) return;
      const base = scale.y(floors[i]);
      floors[i] += y;
      path += `M${(scale.x(xs[i]) - wide / 2).toFixed(1)},${base.toFixed(1)}h${wide.toFixed(1)}V${scale.y(floors[i]).toFixed(1)}h${(-wide).toFixed(1)}z`;
    });
    svg.append(make("path", { d: path, fill: `var(--c${one.color})`, class: "bars" }));
  }
}

// The values under the pointer or the cursor keys, and zoom by dragging.
function follow(svg, data, shown, view, scale, figure) {
  const cross = make("line", { y1: MARGIN.top - 4, y2: scale.floor, stroke: "var(--soft)", "stroke-width": "0.8", visibility: "hidden" });
  const area = make("rect", { y: MARGIN.top - 4, height: scale.floor - MARGIN.top + 4, fill: "var(--c0)", opacity: "0.12", visibility: "hidden" });
  const dots = make("g"), tip = html("div", "tip");
  tip.hidden = true;
  svg.append(area, cross, dots);
  const visible = data.x.map((x, i) => i).filter((i) => data.x[i] >= scale.from && data.x[i] <= scale.to);
  let start = null, at = null;
  const hide = () => { tip.remove(); dots.replaceChildren(); cross.setAttribute("visibility", "hidden"); at = null; };
  const place = (event) => (event.clientX - svg.getBoundingClientRect().left) * scale.width / svg.getBoundingClientRect().width;
  const show = (i) => {
    at = i;
    const x = scale.x(data.x[i]);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    const known = data.stacked ? [] : shown.map((one) => [one, valueAt(one, data.x[i])]).filter(([, y]) => y !== null && (!scale.log || y > 0));
    dots.replaceChildren(...known.map(([one, y]) => make("circle", { cx: x, cy: scale.y(y), r: 3.2, fill: `var(--c${one.color})`, stroke: "var(--paper)" })));
    fillTip(tip, data, shown, i);
    figure.querySelector(".plot").append(tip);
    tip.hidden = false;
    const left = x > scale.width / 2 ? x - 14 - tip.offsetWidth : x + 14;
    tip.style.left = `${Math.max(0, Math.min(left, scale.width - tip.offsetWidth))}px`;
  };
  const nearest = (px) => {
    const x = scale.xAt(px);
    let low = 0, high = visible.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (data.x[visible[middle]] <= x) low = middle; else high = middle;
    }
    return Math.abs(data.x[visible[high]] - x) < Math.abs(data.x[visible[low]] - x) ? visible[high] : visible[low];
  };
  const zoom = (from, to) => {
    if (data.x.filter((x) => x >= from && x <= to).length < 2) return;
    view.zoom = [from, to];
    figure.redraw();
  };
  svg.addEventListener("pointermove", (event) => {
    if (!visible.length) return;
    show(nearest(place(event)));
    if (start === null) return;
    const here = Math.min(Math.max(place(event), scale.left), scale.right);
    area.setAttribute("x", Math.min(start, here));
    area.setAttribute("width", Math.abs(here - start));
    area.setAttribute("visibility", "visible");
  });
  svg.addEventListener("pointerdown", (event) => {
    if (visible.length) show(nearest(place(event)));
    if (event.pointerType === "touch" || event.button !== 0) return; // a touch scrolls the page
    start = Math.min(Math.max(place(event), scale.left), scale.right);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const here = Math.min(Math.max(place(event), scale.left), scale.right), from = Math.min(start, here), to = Math.max(start, here);
    start = null;
    area.setAttribute("visibility", "hidden");
    if (to - from > MIN_DRAG) zoom(scale.xAt(from), scale.xAt(to));
  });
  svg.addEventListener("pointercancel", () => { start = null; area.setAttribute("visibility", "hidden"); });
  svg.addEventListener("pointerleave", () => { if (start === null) hide(); });
  svg.addEventListener("dblclick", () => { view.zoom = null; figure.redraw(); });
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const index = visible.indexOf(at), middle = index < 0 ? (scale.from + scale.to) / 2 : data.x[at], quarter = (scale.to - scale.from) / 4;
    const action = {
      ArrowLeft: () => show(visible[index < 0 ? visible.length - 1 : Math.max(0, index - 1)]),
      ArrowRight: () => show(visible[index < 0 ? 0 : Math.min(visible.length - 1, index + 1)]),
      Home: () => show(visible[0]), End: () => show(visible.at(-1)),
      "+": () => zoom(middle - quarter, middle + quarter),
      "-": () => { view.zoom = null; figure.redraw(); }, Escape: hide,
    }[event.key];
    if (!action || !visible.length) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  });
}

function fillTip(tip, data, shown, i) {
  const known = shown.map((one) => [one, one.places.get(data.x[i])]).filter(([one, at]) => (one.y[at] ?? null) !== null && (!data.stacked || one.y[at]));
  const head = data.heads[i] ?? `${data.over} ${data.x[i].toLocaleString("en")}`;
  const total = data.stacked && known.length ? `: ${exact(known.reduce((sum, [one, at]) => sum + one.y[at], 0), data.unit)}` : "";
  tip.replaceChildren(html("div", "head", head + total), ...known.map(([one, at]) => {
    const row = html("div"), mark = html("b"), low = one.low?.[at] ?? null;
    mark.style.background = `var(--c${one.color})`;
    row.append(mark, `${one.label || data.title} `, html("strong", "", exact(one.y[at], data.unit)));
    if (low !== null && one.high[at] !== null) row.append(` [${formatValue(low, data.unit)}, ${formatValue(one.high[at], data.unit)}]`);
    return row;
  }));
}

function save(svg, data) {
  const copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const legends = data.series.map((one) => one.label).filter(Boolean);
  for (const [name, value] of Object.entries({ xmlns: SVG, width, height: height + 40, viewBox: `0 -40 ${width} ${height + 40}`, "font-family": "system-ui, sans-serif" })) copy.setAttribute(name, value);
  copy.prepend(make("rect", { x: 0, y: -40, width, height: height + 40, fill: "var(--paper)" }),
    make("text", { x: 8, y: -22, "font-size": "14", "font-weight": "600", fill: "var(--ink)" }, data.title),
    ...legends.slice(0, 9).map((label, k) => make("text", { x: 8 + 90 * k, y: -6, "font-size": "11", fill: `var(--c${data.series[k].color})` }, label)));
  const style = getComputedStyle(document.documentElement);
  const text = new XMLSerializer().serializeToString(copy).replace(/var\((--\w+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  const link = html("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  link.download = `${data.title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}.svg`;
  link.click();
  URL.revokeObjectURL(link.href);
}

// About `count` round numbers, 1, 2 or 5 times a power of ten apart, which enclose low and high.
export function niceTicks(low, high, count) {
  const raw = ((high > low ? high - low : Math.abs(high)) || 1) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
}

function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), factors = last - first > 3 ? [1] : [1, 2, 5];
  const every = Math.max(1, Math.ceil((last - first) / 6));
  const found = [];
  for (let k = first; k <= last; k += every) for (const factor of factors) found.push(Number((factor * 10 ** k).toPrecision(12)));
  return found.filter((tick) => tick >= low / 1.1 && tick <= high * 1.1);
}

// A value as a person writes it: 4.1%, 0.83, 1,240, 3.2 s.
export function formatValue(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "share") return `${(100 * value).toFixed(Math.abs(value) >= 0.0995 || value === 0 ? 0 : 1)}%`;
  const size = Math.abs(value), end = unit === "s" ? " s" : "";
  if (size >= 100 || value === 0) return Math.round(value).toLocaleString("en") + end;
  if (size < 0.01) return Number(value.toPrecision(2)) + end;
  return value.toFixed(size >= 10 ? 1 : 2) + end;
}

function exact(value, unit) {
  const text = (number) => Number(number.toPrecision(7)).toLocaleString("en", { maximumSignificantDigits: 7 });
  if (Math.abs(value) < 1e-4 && value) return value.toPrecision(6).replace(/\.?0+(e|$)/, "$1");
  return unit === "share" ? `${text(100 * value)}%` : text(value) + (unit === "s" ? " s" : "");
}

function formatTick(value, unit) {
  if (unit === "share") return `${Number((100 * value).toPrecision(6))}%`;
  if (value && Math.abs(value) < 1e-3) return value.toExponential().replace("e-", "e-");
  return Math.abs(value) >= 10_000 ? `${Number((value / 1000).toPrecision(6)).toLocaleString("en")}k` : value.toLocaleString("en", { maximumSignificantDigits: 6 });
}

// A small line without axes, of at most about 240 values: it is 84 pixels wide.
export function sparkline(all) {
  const every = Math.ceil(all.length / 240), values = all.filter((_, i) => i % every === 0);
  const svg = make("svg", { class: "spark", viewBox: "0 0 120 24", "aria-hidden": "true" });
  const known = values.filter((v) => v !== null);
  if (known.length < 2) return svg;
  const low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b), low + 1e-12);
  const scale = { x: (i) => 2 + 116 * i / (values.length - 1), y: (v) => 21 - 18 * (v - low) / (high - low) };
  svg.append(make("path", { d: pathOf(values.map((_, i) => i), values, scale), fill: "none", stroke: "var(--c0)", "stroke-width": "1.5" }));
  return svg;
}
