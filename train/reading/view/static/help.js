// The keys, as a dialog.

import { h } from "./dom.js";

const KEYS = [
  ["r", "all runs"], ["o", "the run's own page"], ["t", "its trajectories"], ["e", "its evaluations"],
  ["1 … 9", "tabs of the run's page"], ["/", "to the filter or search"], ["j k", "next and previous row, sibling or turn"], ["Enter", "open the row"],
  ["p n", "previous and next sibling"], ["← →", "previous and next token"], ["x", "choose the row for an export"], ["[ ]", "previous and next trajectory of the list"],
  ["← → + −", "in a chart: values by step, zoom"], ["g", "the group of the trajectory"], ["c", "conversation or tokens"], ["f", "show or cut all long texts"],
  ["?", "these keys"], ["Esc", "out of a field, or close"],
];

export function openHelp() {
  const dialog = h("dialog", { "aria-label": "keys", onclose: () => dialog.remove() },
    h("h2", {}, "Keys"),
    h("dl", { class: "facts" }, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("button", { onclick: () => dialog.close() }, "close"));
  document.body.append(dialog);
  dialog.showModal();
}
