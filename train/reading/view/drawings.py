"""The drawings of the page: those of the report, made again whenever a run has more to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rocstar.engine.charts.bars import stacked_bars
from rocstar.engine.charts.drawing import Figure
from rocstar.engine.charts.line_chart import Chart, Series, line_chart
from rocstar.train.reading.view.budget import ledger_bars, status_bars, time_bars, time_shares
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
from rocstar.train.record.console_text import number
from rocstar.train.record.metrics import Row

MAX_OVERLAID = 9
"""Runs in one drawing: so many colours there are."""


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
    """The shares of the phases of a run."""
    if not any(number(row, "time/step") for row in rows):
        return []
    return [{"name": name, "percent": percent, "color": color} for name, percent, color in time_shares(rows)]
