"""The charts of the pages, and the line of the list of runs, from the rows of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rocstar.train.reading.view.chart import Chart, Series, stacked
from rocstar.train.reading.view.curves import PLOTS, evaluation_series, evaluations, plot_chart, rows_of
from rocstar.train.record.console_text import number, time_percents
from rocstar.train.record.metrics import Row
from rocstar.train.record.time_budget import PHASES

MAX_OVERLAID = 9
"""Runs in one chart: the number of colours."""
MAX_FIRST = 6
"""Charts of the first tab."""
FIRST = ("Reward", "Held-out score", "Tool errors in correct trajectories", "Length", "Mismatch KL", "Step time")
"""The charts of the first tab by title. A run without some of them has the next ones of PLOTS there."""
PHASE_COLORS = dict(zip(PHASES, (0, 8, 5, 4, 3, 2, 6, 1, 7), strict=True))
LEDGER_COLORS = (
    ("ledger/kept", 0), ("ledger/dropped_positive", 4), ("ledger/dropped_negative", 5),
    ("ledger/no_signal", 7), ("ledger/failed", 1),
)  # fmt: skip
SPEED = "Tokens that the policy wrote, divided by the wall time of the step."
TIME = "The wall time of each step by phase; phases are exclusive."
OUTCOMES = (
    "The outcome of every generated trajectory: kept for the learner, dropped by RoC, in a group whose "
    "rewards are all equal (no signal), or failed. Nothing is dropped uncounted."
)
STATUSES = "Tool calls of each step by the status in which they ended."


def charts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a run's charts that show anything, each with its `tab` of the run page."""
    curves, steps = _curves({"": rows}), rows_of(rows, "rl")
    speeds = [
        (row["step"], written / seconds)
        for row in steps
        if (written := number(row, "tokens/generated")) and (seconds := number(row, "time/step"))
    ]
    if speeds:
        series = [Series(label="", points=speeds, color=0)]
        curves.append(Chart(title="Tokens per second", unit="tokens/s", series=series, caption=SPEED))
    order = FIRST if steps else ("SFT loss", *FIRST)
    ranks = {title: rank for rank, title in enumerate(order)}
    # sorted() is stable: the others follow in the order of PLOTS.
    first = sorted(curves, key=lambda one: ranks.get(one.title, len(ranks)))[:MAX_FIRST]
    tabs = [("overview", one) for one in first]
    tabs += [("metrics", one) for one in curves if one not in first]
    times = [(f"time/{part['name'].replace(' ', '_')}", part["color"]) for part in time_parts(rows)]
    names = sorted({name for row in steps for name in row if name.startswith("tool/status/")})
    statuses = [(name, place % MAX_OVERLAID) for place, name in enumerate(names)]
    tabs += [("time", one) for one in _bars(rows, "Time of each step", "s", TIME, times)]
    tabs += [("groups", one) for one in _bars(rows, "Outcomes", "trajectories", OUTCOMES, LEDGER_COLORS)]
    tabs += [("metrics", one) for one in _bars(rows, "Tool calls", "calls", STATUSES, statuses)]
    return [one.as_json() | {"tab": tab} for tab, one in tabs]


def overlays(rows_by_run: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """Return every chart that one of the runs has data for, with a curve for each run."""
    return [one.as_json() for one in _curves(dict(list(rows_by_run.items())[:MAX_OVERLAID]))]


def _curves(rows_by_run: Mapping[str, Sequence[Row]]) -> list[Chart]:
    found = []
    for plot in PLOTS:
        if any(plot.says_something(rows_of(rows, plot.phase)) for rows in rows_by_run.values()):
            found.append(plot_chart(plot, rows_by_run))
    at = 1 if found and found[0].title == FIRST[0] else 0
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
    steps = [row for row in rows_of(rows, "rl") if number(row, "time/step") is not None]
    sums = {f"time/{p}": math.fsum(number(row, f"time/{p}") or 0.0 for row in steps) for p in PHASES}
    return [
        {"name": name.replace("_", " "), "percent": percent, "color": PHASE_COLORS[name]}
        for name, percent in time_percents(sums).items()
    ]


def _bars(rows: Sequence[Row], title: str, unit: str, caption: str, metrics: Sequence[tuple[str, int]]) -> list[Chart]:
    """Return the chart of the sum of some metrics, each with its colour, at each step that has any of them"""
    steps = [row for row in rows_of(rows, "rl") if any(number(row, name) for name, _ in metrics)]
    series = [
        Series(
            label=name.rpartition("/")[2].replace("_", " "),
            points=[(row["step"], number(row, name) or 0.0) for row in steps],
            color=color,
        )
        for name, color in metrics
        if any(number(row, name) for row in steps)
    ]
    chart = Chart(title=title, unit=unit, series=series, caption=caption, is_wide=True, is_stacked=True)
    return [chart] if series else []
