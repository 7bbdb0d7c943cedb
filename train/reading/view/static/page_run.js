// One run: its state and recipe, the charts that matter, and tabs with everything else.

import { address, ask } from "./api.js";
import { smoothingControl, sparkline } from "./chart.js";
import { chip, copyButton, dateTime, dotted, duration, figure, fill, h, number, stateChip, STYLE_OF, table, words } from "./dom.js";
import { has, kept } from "./kept.js";

const TABS = { overview: "Overview", metrics: "Metrics", alarms: "Alarms", time: "Time", groups: "Groups", families: "Families", recipe: "Recipe", log: "Console" };

export async function show({ root, params, signal, is }) {
  const name = params.get("run"), tab = params.get("tab") ?? "overview";
  const head = h("div", { class: "runhead" }), tabs = h("nav", { class: "tabs", "aria-label": "parts of this run" }), body = h("div", { class: "tab" });
  const listed = (path) => ask(path, { run: name }, signal).catch((error) => ({ problem: error.message }));
  const shows = tab === "metrics" ? allMetrics(body, listed) : tab === "log" ? consoleLog(body, listed) : tab === "recipe" ? recipe(body) : null;
  let there = [];
  const update = async () => {
    const run = await ask("run", { run: name }, signal);
    if (!is()) return;
    const alarms = (tab === "overview" || tab === "alarms") && run.steps && has("alarms", { run: name }) ? listed("alarms") : null;
    const y = scrollY;
    fill(head, headOf(run));
    there = Object.keys(TABS).filter((one) => isThere(one, run, name));
    fill(tabs, there.map((one) => h("a", { href: address("run", { run: name, tab: one === "overview" ? "" : one }), "aria-current": one === tab ? "page" : undefined }, TABS[one])));
    if (!root.firstChild) fill(root, head, tabs, h("h2", { class: "hidden" }, TABS[tab]), body);
    if (shows) await shows(run);
    else if (tab === "alarms") fill(body, alarmsOf(name, await alarms));
    else if (tab === "time") fill(body, shares(run.time), charts(run, "time"));
    else if (tab === "groups") fill(body, await groupsOf(name, run, listed));
    else if (tab === "families") fill(body, familiesOf(name, await listed("families")));
    else {
      const line = h("p", { class: "alarmline" }, [...(body.querySelector(".alarmline")?.childNodes ?? [])]);
      fill(body, line, charts(run, "overview"), kept && toRead(name, await listed("list")));
      alarms?.then((found) => fill(line, alarmLine(name, found))); // a diagnosis takes longer than the charts
    }
    if (is()) scrollTo(0, y);
  };
  await update();
  tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  const keys = Object.fromEntries(there.map((one, k) => [String(k + 1), () => { location.hash = address("run", { run: name, tab: one === "overview" ? "" : one }); }]));
  return { title: name, keys, changed: (names) => names.includes(name) && update() };
}

function isThere(tab, run, name) {
  if (tab === "metrics" || tab === "log") return has(tab, { run: name }) && (tab === "log" ? run.starts.length > 0 || run.kind === "training" : run.charts.length > 0);
  if (tab === "alarms") return run.steps > 0 && has("alarms", { run: name });
  if (tab === "time") return run.time.length > 0;
  if (tab === "groups") return run.charts.some((one) => one.tab === "groups") || (run.trajectories && has("groups", { run: name }));
  if (tab === "families") return run.trajectories && has("families", { run: name });
  return tab !== "recipe" || run.fields.length > 0;
}

function headOf(run) {
  const last = run.starts.at(-1), name = run.name, differing = run.differences.length;
  const fact = (label, value, wide) => value && h("div", { class: wide ? "wide" : "" }, h("dt", {}, label), h("dd", {}, value));
  const machine = last?.machine.split(", ") ?? [];
  return [
    h("h1", {}, name, " ", run.status && stateChip(run.status)),
    h("p", { class: "soft path small" }, run.path),
    run.problem && h("p", { class: "bad" }, run.problem),
    run.reason && h("p", { class: "bad", id: "reason" }, `${run.status === "failed" ? "Failed" : "Stopped"}: ${run.reason}`),
    run.progress && progressOf(run.progress),
    run.growing && h("p", { class: "soft small", id: "growing" }, `Step ${run.growing.step} is being rolled out: ${(run.growing.bytes / 1e6).toFixed(1)} MB of trajectories so far`),
    h("dl", { class: "headfacts" },
      fact("model", run.model),
      fact("recipe", run.fields.length > 0 && [h("a", { href: address("run", { run: name, tab: "recipe" }), "aria-label": `recipe ${run.recipe}` }, run.recipe || "config.toml"),
        h("span", { class: "soft" }, ` · ${differing ? `${differing} field${differing > 1 ? "s differ" : " differs"} from the ${run.base ? "shipped recipe" : "defaults"}` : run.base ? "as shipped" : "all defaults"}`)]),
      fact("started", last && [dateTime(run.starts[0].started), run.starts.length > 1 && h("span", { class: "soft" }, ` · ${run.starts.length} starts`)]),
      fact("commit", last?.commit && h("code", {}, last.commit)),
      fact("machine", last && h("span", { title: last.machine }, [machine[0], ...machine.slice(2)].join(", "))),
      fact("command", last?.command && [h("code", {}, last.command), " ", copyButton(last.command, "copy the command")], true)),
    h("div", { class: "tiles" }, run.tiles.map((tile) => h("div", { class: "tile" },
      h("div", { class: "name" }, tile.name), h("div", { class: "value" }, tile.value), h("div", { class: "detail" }, tile.detail)))),
    h("ul", { class: "links" },
      run.trajectories && h("li", {}, h("a", { href: address("list", { run: name }) }, "trajectories")),
      run.evaluated.filter((step) => has("evaluation", { run: name, step })).map((step) => h("li", {},
        h("a", { href: address("evaluation", { run: name, step }) }, `evaluation at step ${step}`))),
      run.trajectories && !kept && h("li", {}, h("a", { href: `export?${new URLSearchParams({ run: name })}` }, "save as one HTML file")))];
}

function progressOf({ phase, step, steps, stage, left_s, work }) {
  const text = [`${phase}${stage ? `, ${stage}` : ""}: step ${step.toLocaleString("en")} of ${steps.toLocaleString("en")}`,
    left_s !== null && step < steps && `about ${duration(left_s)} left${phase === "RL" ? "" : ` of the ${phase}`}`].filter(Boolean).join(" · ");
  return h("div", { id: "progress" }, h("progress", { max: steps, value: step, "aria-label": text }), h("span", {}, text), work && !work.startsWith(`${phase}:`) && h("p", { class: "soft small" }, `now: ${work}`));
}

function charts(run, tab) {
  const found = run.charts.filter((one) => one.tab === tab), box = h("div", { class: "charts" }, found.map(figure));
  if (!found.length) return tab === "overview" && h("p", { class: "soft" }, "No metrics yet.");
  return [!found.every((one) => one.stacked) && h("div", { class: "toolbar" }, smoothingControl(box)), box];
}

// The other charts, and each metric by name; the search filters both.
function allMetrics(body, listed) {
  const search = h("input", { type: "search", placeholder: "search metrics: lr, kl, tool", "aria-label": "search metrics", oninput: () => render() });
  const results = h("div"), open = new Set();
  let run = null, metrics = [];
  fill(body, h("div", { class: "toolbar" }, search, h("span", { class: "grow" }), smoothingControl(results)), results);
  const render = () => {
    const parts = search.value.toLowerCase().split(/\s+/).filter(Boolean), fits = (text) => parts.every((part) => text.toLowerCase().includes(part));
    const drawn = run.charts.filter((one) => one.tab === "metrics" && fits(`${one.title} ${one.caption}`));
    const found = metrics.filter((one) => fits(`${one.name} ${one.meaning}`));
    fill(results, drawn.length > 0 && h("div", { class: "charts" }, drawn.map(figure)),
      h("h2", {}, `${found.length} of ${metrics.length} metrics`), h("p", { class: "soft small" }, "First and last value of each; its name opens the curve."),
      table(["metric", "curve", "first", "last", "unit", "meaning"], found.map(row), "all metrics", true));
  };
  const row = (one) => {
    const curve = h("div", { class: "curve" });
    const draw = () => fill(curve, open.has(one.name) && figure({ title: one.name, subtitle: one.unit, unit: one.unit, over: "step", caption: one.meaning, wide: true, stacked: false, marks: [],
      heads: [], top: null, series: [{ label: "", color: 0, x: one.x, y: one.y, dots: false }] }));
    const name = h("button", { class: "plain", "aria-expanded": open.has(one.name), onclick: () => {
      if (!open.delete(one.name)) open.add(one.name);
      name.setAttribute("aria-expanded", open.has(one.name));
      draw();
    } }, one.name);
    draw();
    return [[name, curve], sparkline(one.y), one.first, one.last, one.unit, one.meaning];
  };
  return async (now) => {
    run = now;
    metrics = (await listed("metrics")).metrics ?? [];
    render();
  };
}

function recipe(body) {
  const search = h("input", { type: "search", placeholder: "search fields: lr, group", "aria-label": "search fields", oninput: () => render() });
  const results = h("div"), changed = h("div"), rest = h("div");
  let run = null;
  fill(body, changed, h("h2", {}, "All fields"), h("div", { class: "toolbar" }, search), results, rest);
  const render = () => fill(results, table(["field", "value"], run.fields.filter(([name]) => name.includes(search.value.trim())).map(([name, value]) => [dotted(name), value]), "fields of the recipe", true));
  return (now) => {
    run = now;
    const base = run.base ? `the shipped recipe ${run.base}` : "the defaults";
    fill(changed, h("h2", {}, `Differences from ${base}`), run.differences.length ? table(["field", "this run", run.base ? "shipped" : "default"],
      run.differences.map(([name, ...values]) => [dotted(name), ...values]), "differences", true) : h("p", { class: "soft" }, "None."));
    fill(rest, h("details", { class: "fold" }, h("summary", {}, "config.toml"), h("pre", {}, run.config)),
      run.starts.length > 0 && [h("h2", {}, "Starts"), table(["started", "end", "commit", "versions", "machine", "command"],
        run.starts.map((one) => [dateTime(one.started), one.end, one.commit, one.versions, one.machine, h("code", {}, one.command)]), "starts", true)]);
    render();
  };
}

function consoleLog(body, listed) {
  const search = h("input", { type: "search", placeholder: "search the console", "aria-label": "search the console", oninput: () => render() });
  const count = h("span", { class: "soft small" }), text = h("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "console log" });
  let lines = [];
  fill(body, h("div", { class: "toolbar" }, search, count), text);
  const render = () => {
    const wanted = search.value.toLowerCase(), found = lines.filter((line) => line.toLowerCase().includes(wanted));
    const isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
    count.textContent = lines.length ? `${found.length} of the last ${lines.length} lines` : "The run has no console log.";
    fill(text, found.map((line) => h("span", { class: /(^|Z )(warning|error|ended): |Error\b/.test(line) ? "bad" : "" }, `${line}\n`)));
    if (isAtEnd) text.scrollTop = text.scrollHeight;
  };
  return async () => {
    lines = (await listed("log")).lines ?? [];
    render();
  };
}

async function groupsOf(name, run, listed) {
  const groups = run.trajectories && has("groups", { run: name }) ? await listed("groups") : null;
  return [charts(run, "groups"), groups?.drawing && h("div", { class: "charts" }, figure(groups.drawing))];
}

function familiesOf(name, { families = [], drawing }) {
  const points = (value) => value.toFixed(2);
  if (!families.length) return h("p", { class: "soft" }, "No scored trajectories yet.");
  const box = h("div", { class: "charts" }, drawing && figure(drawing));
  return [drawing && [h("div", { class: "toolbar" }, smoothingControl(box)), box],
    table(["family", "trajectories", "correct", "reward", "first quarter", "last quarter", "tokens"],
      families.map((one) => [h("a", { href: address("list", { run: name, filter: one.name.includes(" ") ? "" : `family=${one.name}` }) }, one.name), number(one.trajectories),
        `${(100 * one.correct).toFixed(1)}%`, points(one.reward), points(one.first), points(one.last), number(Math.round(one.tokens))]), "task families")];
}

const KIND_STYLE = { liveness: "bad", health: "bad", advice: "quiet" };

// The active alarms in one line, with a link to what `rocstar doctor` says about them.
function alarmLine(run, found) {
  if (!found || found.problem || !found.standing.length) return null;
  return [h("a", { href: address("run", { run, tab: "alarms" }) }, `${found.standing.length} active alarm${found.standing.length > 1 ? "s" : ""}`), ": ",
    found.standing.map((one) => [chip(words(one.alarm), KIND_STYLE[one.kind]), " "])];
}

function alarmsOf(run, found) {
  if (!found) return h("p", { class: "soft", id: "alarms" }, "No steps yet.");
  if (found.problem) return h("p", { class: "soft", id: "alarms" }, `No alarms are known: ${found.problem}`);
  const state = found.state.told && h("p", { class: "bad" }, `${words(found.state.name)}: ${found.state.told}`);
  return h("div", { id: "alarms" }, state,
    !found.standing.length && h("p", { class: "soft" }, "No active alarms."),
    found.standing.map((one) => alarm(run, one)),
    found.over.length > 0 && h("details", { class: "fold" }, h("summary", {}, `over: ${found.over.map((one) => words(one.alarm)).join(", ")}`),
      found.over.map((one) => alarm(run, one))));
}

function alarm(run, one) {
  const steps = one.first_step === one.last_step ? `step ${one.first_step}` : `steps ${one.first_step} to ${one.last_step}`;
  return h("div", { class: "alarm" },
    h("p", {}, chip(one.kind, KIND_STYLE[one.kind]), " ", h("b", {}, words(one.alarm)), h("span", { class: "soft" }, `, ${steps}: `), one.says),
    h("p", { class: "small" }, `Seen: ${one.now || one.seen}.`,
      one.trajectories.length > 0 && [" Shown by ", one.trajectories.map((at, k) => [k > 0 && ", ",
        h("a", { href: address("trajectory", { run, file: at.file, row: at.row }) }, at.id)]), "."]),
    h("p", { class: "small" }, `Do: ${one.todo}`),
    h("details", { class: "fold small" }, h("summary", {}, "definition"), h("p", {}, `${one.definition} (${one.source})`)));
}

// The trajectories that a file has.
function toRead(run, list) {
  if (!list?.rows?.length && !list?.problems?.length) return null;
  return [h("h2", {}, `${list.rows.length} trajectories to read`), list.problems.map((problem) => h("p", { class: "soft" }, problem)),
    table(["trajectory", "step", "verdict", "outcome", "turns", "calls", "errors", "tokens"], list.rows.map((row) => [
      h("a", { href: address("trajectory", { run, file: row.file, row: row.row }) }, row.question || row.name, ` #${row.attempt}`), row.step,
      chip(row.verdict, STYLE_OF[row.verdict]), words(row.bucket), row.turns, row.calls, row.errors, number(row.tokens)]), "trajectories to read")];
}

function shares(parts) {
  const bar = h("div", { class: "sharebar" }), names = h("ul", { class: "legend" });
  for (const part of parts) {
    const piece = bar.appendChild(h("i", { title: part.name }));
    piece.style.width = `${part.percent}%`;
    piece.style.background = `var(--c${part.color})`;
    const mark = h("b");
    mark.style.background = `var(--c${part.color})`;
    names.append(h("li", {}, mark, `${part.name} ${part.percent}%`));
  }
  return [h("h2", {}, "Share of the wall time"), bar, names];
}
