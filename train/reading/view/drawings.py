"""The drawings of the page: those of the report, made again whenever a run has more to show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rocstar.engine.charts.bars import stacked_bars
from rocstar.engine.charts.drawing import Figure
from rocstar.engine.charts.line_chart import Chart, Series, line_chart
from rocstar.train.reading.view.curves import (
    PLOTS,
    REWARD,
    Plot,
    drawn_curves,
    evaluations,
    main_set_of,
    plot_chart,
    rows_of,
)
from rocstar.train.reading.view.viewed_run import STEPS, ViewedRun
from rocstar.train.record.console_text import number, time_percents
from rocstar.train.record.metrics import Row
from rocstar.train.record.time_budget import PHASES

MAX_OVERLAID = 9
"""Runs in one drawing: so many colours there are."""
PHASE_COLORS = dict(zip(PHASES, (0, 8, 5, 4, 3, 2, 6, 1, 7), strict=True))
STATUS, STATUS_COLORS = "tool/status/", 9
LEDGER_COLORS = {"kept": 0, "dropped positive": 4, "dropped negative": 5, "no signal": 7, "failed": 1}


def charts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A run's curves, time budget and ledger, and how its tool calls ended, as the report draws them; each
    for a screen and for a phone."""
    bars = (time_bars(rows), ledger_bars(rows), status_bars(rows))
    return [one.as_json() for one in (*drawn_curves(rows), *bars) if one is not None]


def _shown_keys(plot: Plot, rows_by_run: Mapping[str, Sequence[Row]]) -> Mapping[str, str]:
    """Return the first metric of a plot that has something to say in one of several runs; of one run, all."""
    if len(rows_by_run) == 1:
        return plot.keys
    alone = [replace(plot, keys={key: label}) for key, label in plot.keys.items()]
    return next((one.keys for one in alone if _has(one, rows_by_run)), alone[0].keys)


def overlays(rows_by_run: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """Return every plot that one of the runs has data for, and their evaluations."""
    runs = dict(list(rows_by_run.items())[:MAX_OVERLAID])
    found = []
    for plot in (REWARD, *PLOTS):
        if _has(plot, rows_by_run):
            keys = _shown_keys(plot, rows_by_run)
            chart = plot_chart(plot, runs, keys=keys, with_evaluations=plot is REWARD)
            figure = Figure(partial(line_chart, chart), plot.caption, is_wide=plot is REWARD)
            found.append(figure.as_json())
    return found + [one.as_json() for one in _evaluation_overlays(rows_by_run)]


def _has(plot: Plot, rows_by_run: Mapping[str, Sequence[Row]]) -> bool:
    return any(plot.says_something(rows_of(rows, "rl")) for rows in rows_by_run.values())


def _evaluation_overlays(rows_by_run: Mapping[str, Sequence[Row]]) -> list[Figure]:
    """Each set over the steps, a curve for each run that was evaluated on it."""
    by_set: dict[str, list[Series]] = {}
    for color, (run, rows) in enumerate(list(rows_by_run.items())[:MAX_OVERLAID]):
        points: dict[str, list[tuple[float, float | None]]] = {}
        for e in evaluations(rows):
            points.setdefault(e.set_name, []).append((e.step, e.value))
        for name, curve in points.items():
            by_set.setdefault(name, []).append(Series(label=run, color=color, points=curve))
    caption = "Share of correct attempts in evaluation; intervals are on each run's own page."
    return [
        Figure(partial(line_chart, Chart(title=name, unit="reward", series=series, top=1.0)), caption)
        for name, series in by_set.items()
    ]


def task_drawing(over_steps: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The share of correct attempts at a task over the steps, a curve for each run."""
    series = [
        Series(
            label=run if len(over_steps) > 1 else "",
            color=color % MAX_OVERLAID,
            points=[(one["step"], one["correct"] / one["attempts"]) for one in steps],
        )
        for color, (run, steps) in enumerate(over_steps.items())
        if steps
    ]
    chart = Chart(
        title="Solved", subtitle="share of the attempts at this task", unit="share", series=series, top=1.0
    )
    caption = "All attempts of a step, including failed ones."
    return Figure(partial(line_chart, chart), caption, is_wide=True).as_json()


def pass_rate_drawing(groups: Sequence[int], step: int) -> dict[str, Any]:
    """Return the number of groups by their number of correct siblings."""
    draw = partial(
        stacked_bars,
        f"Groups of step {step}",
        "groups",
        list(range(len(groups))),
        {"groups": [float(count) for count in groups]},
        colors={"groups": 0},
        over="correct",
    )
    caption = "From the left: groups with no correct sibling, with one, and so on. The ends teach nothing."
    return Figure(draw, caption).as_json()


def summary(run: ViewedRun) -> dict[str, Any]:
    """A line of the list of runs; nothing of its trajectories is read."""
    rows = run.metrics()
    steps, found = rows_of(rows, "rl"), evaluations(rows)
    main = main_set_of(found)
    last = next((e for e in reversed(found) if e.set_name == main), None)
    return {
        "name": run.name,
        "path": str(run.path),
        "status": run.status(),
        "steps": len(steps),
        "reward": number(steps[-1], "reward/mean") if steps else None,
        "curve": [number(row, "reward/mean") for row in steps][-400:],
        "evaluation": None
        if last is None
        else {"set": last.set_name, "value": last.value, "low": last.low, "high": last.high},
        "wall_s": max((float(row["time_s"]) for row in rows), default=None),
        "evaluated": list(run.evaluations()),
        "trajectories": STEPS in run.collections(),
        "problem": run.problem,
    }


def time_parts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Name, percent and colour of each phase that took time in the whole run; the percents sum to 100."""
    steps = _timed(rows)
    sums = {f"time/{p}": math.fsum(number(row, f"time/{p}") or 0.0 for row in steps) for p in PHASES}
    return [
        {"name": _words(name), "percent": percent, "color": PHASE_COLORS[name]}
        for name, percent in time_percents(sums).items()
    ]


def time_bars(rows: Sequence[Row]) -> Figure | None:
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
    draw = partial(stacked_bars, "Time of each step", "s", xs, parts, colors=colors)
    caption = "The wall time of each step by phase; phases are exclusive."
    return Figure(draw, caption, is_wide=True)


def ledger_bars(rows: Sequence[Row]) -> Figure | None:
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
    draw = partial(stacked_bars, "Ledger", "trajectories", xs, parts, colors=LEDGER_COLORS)
    caption = "The outcome of every generated trajectory: kept for the learner, dropped by RoC, in a group "
    caption += "whose rewards are all equal (no signal), or failed. Nothing is dropped uncounted."
    return Figure(draw, caption, is_wide=True)


def status_bars(rows: Sequence[Row]) -> Figure | None:
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
    draw = partial(stacked_bars, "Tool calls", "calls", [row["step"] for row in steps], parts, colors=colors)
    return Figure(draw, "Tool calls of each step by the status in which they ended.", is_wide=True)


def _timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows_of(rows, "rl") if number(row, "time/step") is not None]


def _words(name: str) -> str:
    return name.replace("_", " ")
