// Elements from values. Text only ever becomes a text node, so what a policy wrote stays text.

import { chart } from "./chart.js";

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value" || name === "checked" || name === "open") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return put(element, ...children);
}

export function put(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return put(element, ...children);
}

const SHAPES = new Set(["svg", "g", "path", "line", "rect", "circle", "polyline", "polygon", "text", "tspan"]);
const ATTRIBUTES = new Set(["class", "viewBox", "role", "aria-label", "x", "y", "x1", "x2", "y1",
  "y2", "cx", "cy", "r", "rx", "dx", "d", "points", "width", "height", "fill", "stroke", "stroke-width",
  "stroke-dasharray", "opacity", "text-anchor", "font-size", "font-weight"]);
const SVG = "http://www.w3.org/2000/svg";

// A drawing of the server, built anew from the shapes and attributes that a drawing has; all else is left out.
export function drawing(text) {
  const found = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  return found.localName === "svg" ? copied(found) : document.createElementNS(SVG, "svg");
}

function copied(node) {
  const element = document.createElementNS(SVG, node.localName);
  for (const { name, value } of node.attributes) if (ATTRIBUTES.has(name)) element.setAttribute(name, value);
  for (const child of node.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) element.append(document.createTextNode(child.data));
    else if (child.nodeType === Node.ELEMENT_NODE && SHAPES.has(child.localName)) element.append(copied(child));
  }
  return element;
}

// A chart of numbers, or a drawing that the server made.
export function figure(one) {
  const { screen, phone, caption, wide } = one;
  return one.series ? chart(one) : h("figure", { class: wide ? "wide" : "" },
    h("div", { class: "screen" }, drawing(screen)), h("div", { class: "phone" }, drawing(phone)),
    h("figcaption", {}, caption));
}

export function chip(text, style) {
  return h("span", { class: `chip ${style}` }, text);
}

export const STYLE_OF = { "correct": "good", "wrong": "bad", "no reward": "quiet" };

export function words(name) {
  return String(name).replaceAll("_", " ");
}

export function number(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(digits);
}

export function signed(value) {
  if (value === null || value === undefined) return "–";
  return `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(2)}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${(1000 * value).toFixed(0)} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(1)} min`;
}

export function duration(value) {
  if (value === null || value === undefined) return "–";
  if (value < 90) return `${value.toFixed(0)} s`;
  return value < 5400 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}

// A time of the server in the reader's own zone: 2026-11-27 06:12.
export function dateTime(text) {
  const date = new Date(text), two = (value) => String(value).padStart(2, "0");
  if (!text || Number.isNaN(date.getTime())) return text || "–";
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

// A dotted name, which may break behind a dot or an underscore.
export function dotted(name) {
  return h("code", {}, name.split(/(?<=[._/])/).map((part) => [h("wbr"), part]));
}

const STATES = { running: ["running", "accent"], complete: ["finished", "good"], interrupted: ["stopped", "quiet"], failed: ["failed", "bad"], killed: ["killed", "bad"] };

export function stateChip(status) {
  const [text, style] = STATES[status] ?? [status, "quiet"];
  return status ? chip(text, style) : "–";
}

export function copyButton(text, label, shown = "copy") {
  const button = h("button", { class: "small", "aria-label": label, title: label, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      say("the browser refuses to copy; select the text instead");
    }
  } }, shown);
  return button;
}

// Columns but the first are numbers, unless `isText`.
export function table(head, rows, label, isText = false) {
  const style = (i) => i && !isText ? "n" : "";
  return h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label },
    h("table", {}, h("thead", {}, h("tr", {}, head.map((name, i) => h("th", { scope: "col", class: style(i) }, name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", { class: style(i) }, cell)))))));
}

export function say(text) {
  document.getElementById("said").textContent = text;
}
