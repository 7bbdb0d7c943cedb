// The report of a run, which its file has drawn before any script runs; it is put back when a reader returns.

import { h } from "./dom.js";

const drawn = document.getElementById("drawn");

export async function show({ root, params }) {
  root.append(drawn ?? h("p", {}, "A report is a file of its own: report.html in the directory of the run."));
  return { title: `${params.get("run")}, report` };
}
