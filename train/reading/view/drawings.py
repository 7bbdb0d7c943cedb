"""The charts of the pages, and the line of the list of runs, from the rows of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rocstar.train.reading.view.chart import Chart, Series, stacked
from rocstar.train.reading.view.curves import (
    ERRORS,
    LENGTH,
    MISMATCH,
    PLOTS,
    REWARD,
    SFT_LOSS,
    STEP_TIME,
    evaluation_series,
    evaluations,
    plot_chart,
    rows_of,
)
from rocstar.train.record.console_text import number, time_percents
from rocstar.train.record.metrics import Row
from rocstar.train.record.time_budget import PHASES

MAX_OVERLAID = 9
"""Runs in one chart: the number of colours."""
MAX_FIRST = 6
"""Charts of the first tab."""
FIRST = (REWARD.title, "Held-out score", ERRORS.title, LENGTH.title, MISMATCH.title, STEP_TIME.title)
"""The charts of the first tab by title. A run without some of them has the next ones of PLOTS there."""
PHASE_COLORS = dict(zip(PHASES, (0, 8, 5, 4, 3, 2, 6, 1, 7), strict=True))
STATUS, STATUS_COLORS = "tool/status/", 9
LEDGER_COLORS = {"kept": 0, "dropped positive": 4, "dropped negative": 5, "no signal": 7, "failed": 1}


def charts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a run's charts that show anything, each with its `tab` of the run page."""
    curves = [*_curves({"": rows}), *_throughput(rows)]
    has_steps = bool(rows_of(rows, "rl"))
    order = FIRST if has_steps else (SFT_LOSS.title, *FIRST)
    ranks = {title: rank for rank, title in enumerate(order)}
    # sorted() is stable: the others follow in the order of PLOTS.
    first = sorted(curves, key=lambda one: ranks.get(one.title, len(ranks)))[:MAX_FIRST]
    tabs: list[tuple[str, Chart | None]] = [("overview", one) for one in first]
    tabs += [("metrics", one) for one in curves if one not in first]
    tabs += [("time", time_bars(rows)), ("groups", ledger_bars(rows)), ("metrics", status_bars(rows))]
    return [one.as_json() | {"tab": tab} for tab, one in tabs if one is not None]


def overlays(rows_by_run: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """Return every chart that one of the runs has data for, with a curve for each run."""
    return [one.as_json() for one in _curves(dict(list(rows_by_run.items())[:MAX_OVERLAID]))]


def _curves(rows_by_run: Mapping[str, Sequence[Row]]) -> list[Chart]:
    found = []
    for plot in (REWARD, *PLOTS):
        if any(plot.says_something(rows_of(rows, plot.phase)) for rows in rows_by_run.values()):
            found.append(plot_chart(plot, rows_by_run))
    at = 1 if found and found[0].title == REWARD.title else 0
    return found[:at] + _scores(rows_by_run) + found[at:]


def _scores(rows_by_run: Mapping[str, Sequence[Row]]) -> list[Chart]:
    """Return the evaluations over the steps: of one run all sets in a chart, of several a chart per set."""
    alone = len(rows_by_run) == 1
    by_title: dict[str, list[Series]] = {}
    for place, (run, rows) in enumerate(rows_by_run.items()):
        found = evaluations(rows)
        for k, name in enumerate(dict.fromkeys(e.set_name for e in found)):
            series = evaluation_series(found, name, color=k if alone else place, label=run)
            by_title.setdefault("Held-out score" if alone else f"Held-out score: {name}", []).append(series)
    caption = "Share of correct attempts in evaluation, with its 95% interval."
    return [
        Chart(title=title, unit="reward", subtitle="avg@k", series=series, top=1.0, caption=caption)
        for title, series in by_title.items()
    ]


def _throughput(rows: Sequence[Row]) -> list[Chart]:
    speeds = [
        (row["step"], written / seconds)
        for row in rows_of(rows, "rl")
        if (written := number(row, "tokens/generated")) and (seconds := number(row, "time/step"))
    ]
    caption = "Tokens that the policy wrote, divided by the wall time of the step."
    series = [Series(label="", points=speeds, color=0)]
    return [Chart(title="Tokens per second", unit="tokens/s", series=series, caption=caption)][: bool(speeds)]


def task_drawing(over_steps: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the share of correct attempts at a task over the steps, a curve for each run."""
    series = [
        Series(
            label=run if len(over_steps) > 1 else "",
            color=color % MAX_OVERLAID,
            points=[(one["step"], one["correct"] / one["attempts"]) for one in steps],
        )
        for color, (run, steps) in enumerate(over_steps.items())
        if steps
    ]
    return Chart(
        title="Solved",
        subtitle="share of the attempts at this task",
        unit="share",
        series=series,
        top=1.0,
        caption="All attempts of a step, including failed ones.",
        is_wide=True,
    ).as_json()


def pass_rate_drawing(groups: Sequence[int], step: int) -> dict[str, Any]:
    """Return the number of groups by their number of correct siblings."""
    caption = "From the left: groups with no correct sibling, with one, and so on. Both ends give no signal."
    return stacked(
        f"Groups of step {step}",
        "groups",
        list(range(len(groups))),
        {"groups": [float(count) for count in groups]},
        colors={"groups": 0},
        over="correct",
        caption=caption,
    ).as_json()


def time_parts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Name, percent and colour of each phase that took time in the whole run; the percents sum to 100."""
    steps = _timed(rows)
    sums = {f"time/{p}": math.fsum(number(row, f"time/{p}") or 0.0 for row in steps) for p in PHASES}
    return [
        {"name": _words(name), "percent": percent, "color": PHASE_COLORS[name]}
        for name, percent in time_percents(sums).items()
    ]


def time_bars(rows: Sequence[Row]) -> Chart | None:
    """Each step's wall time; None for a run that measured none."""
    steps = _timed(rows)
    if not steps:
        return None
    shown = {part["name"] for part in time_parts(rows)}
    parts = {
        _words(p): [number(row, f"time/{p}") or 0.0 for row in steps] for p in PHASES if _words(p) in shown
    }
    colors = {_words(name): color for name, color in PHASE_COLORS.items()}
    xs = [row["step"] for row in steps]
    caption = "The wall time of each step by phase; phases are exclusive."
    return stacked("Time of each step", "s", xs, parts, colors=colors, caption=caption, is_wide=True)


def ledger_bars(rows: Sequence[Row]) -> Chart | None:
    """The outcome of each step's trajectories; None for a run without a ledger."""
    steps = [row for row in rows_of(rows, "rl") if number(row, "ledger/generated") is not None]
    if not steps:
        return None
    parts = {
        name: [number(row, f"ledger/{name.replace(' ', '_')}") or 0.0 for row in steps]
        for name in LEDGER_COLORS
    }
    parts = {name: counts for name, counts in parts.items() if any(counts)}
    xs = [row["step"] for row in steps]
    caption = "The outcome of every generated trajectory: kept for the learner, dropped by RoC, in a group "
    caption += "whose rewards are all equal (no signal), or failed. Nothing is dropped uncounted."
    return stacked("Outcomes", "trajectories", xs, parts, colors=LEDGER_COLORS, caption=caption, is_wide=True)


def status_bars(rows: Sequence[Row]) -> Chart | None:
    """How the tool calls of each step ended; None for a run without any."""
    steps = rows_of(rows, "rl")
    names = sorted({name for row in steps for name in row if name.startswith(STATUS)})
    parts = {
        _words(name.removeprefix(STATUS)): [number(row, name) or 0.0 for row in steps]
        for name in names
        if any(number(row, name) for row in steps)
    }
    if not parts:
        return None
    colors = {name: place % STATUS_COLORS for place, name in enumerate(parts)}
    xs, caption = [row["step"] for row in steps], "Tool calls of each step by the status in which they ended."
    return stacked("Tool calls", "calls", xs, parts, colors=colors, caption=caption, is_wide=True)


def _timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows_of(rows, "rl") if number(row, "time/step") is not None]


def _words(name: str) -> str:
    return name.replace("_", " ")
