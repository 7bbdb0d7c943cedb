"""The charts of the pages, from the rows of metrics.jsonl and the listing of the steps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocstar.train.reading.view.chart import (
    PLOTS,
    Chart,
    Series,
    evaluation_series,
    evaluations,
    plot_chart,
    rows_of,
    stacked,
)
from rocstar.train.reading.view.listing import Listing
from rocstar.train.record.console_text import number, time_percents
from rocstar.train.record.metrics import Row
from rocstar.train.record.time_budget import PHASES

MOST_CURVES: Final = 9
"""The number of colours; only the largest families are drawn."""
QUARTER: Final = 4
CHUNK_ROWS: Final = 1 << 16


def families(listing: Listing) -> list[dict[str, Any]]:
    """Return the trajectories, pass rate and mean reward of each family, over all steps and over the first
    and last quarter; largest first. Failed trajectories have no reward."""
    steps = np.unique(listing.rows["step"])
    number, correct, reward, tokens = _sums(listing, steps)
    found = []
    for family, name in enumerate(listing.families):
        there = np.flatnonzero(number[family])
        if not len(there):
            continue
        size = -(-len(there) // QUARTER)
        first, last = there[:size], there[-size:]
        counts, rewards = number[family], reward[family]
        total = counts.sum()
        found.append(
            {
                "name": name,
                "trajectories": int(total),
                "correct": float(correct[family].sum() / total),
                "reward": float(rewards.sum() / total),
                "first": float(rewards[first].sum() / counts[first].sum()),
                "last": float(rewards[last].sum() / counts[last].sum()),
                "tokens": float(tokens[family].sum() / total),
                "steps": steps[there].tolist(),
                "rewards": (rewards[there] / counts[there]).tolist(),
            }
        )
    return sorted(found, key=lambda one: -one["trajectories"])


def _sums(listing: Listing, steps: npt.NDArray[Any]) -> list[npt.NDArray[np.float64]]:
    """Return the sums of each family and step: scored, correct, rewards and tokens. Rows are processed in
    chunks, because a copy of a million of them is large."""
    shape = max(1, len(listing.families)), len(steps)
    sums = [np.zeros(shape) for _ in range(4)]
    for start in range(0, len(listing.rows), CHUNK_ROWS):
        rows = listing.rows[start : start + CHUNK_ROWS]
        rows = rows[~np.isnan(rows["reward"])]
        cells = rows["family"].astype(np.intp) * len(steps) + np.searchsorted(steps, rows["step"])
        columns = (None, rows["is_correct"], rows["reward"], rows["tokens"])
        for total, weights in zip(sums, columns, strict=True):
            total += np.bincount(cells, weights, minlength=total.size).reshape(shape)
    return sums


def families_drawing(found: list[dict[str, Any]]) -> Chart | None:
    """Return the mean reward of the largest families over the steps, or None for fewer than two families."""
    if len(found) < 2:
        return None
    series = [
        Series(label=one["name"], color=color, points=list(zip(one["steps"], one["rewards"], strict=True)))
        for color, one in enumerate(found[:MOST_CURVES])
    ]
    left_out = len(found) - len(series)
    caption = "Mean reward of the generated trajectories of each family of tasks." + (
        f" {left_out} smaller families are in the table alone." if left_out else ""
    )
    return Chart(title="Reward by task family", unit="reward", series=series, caption=caption, is_wide=True)


MAX_OVERLAID = 9
"""Runs in one chart: the number of colours."""
MAX_FIRST = 6
"""Charts of the first tab."""
FIRST = ("Reward", "Held-out score", "Tool errors in correct trajectories", "Length", "Mismatch KL", "Step time")
"""The charts of the first tab by title. A run without some of them has the next ones of PLOTS there."""
PHASE_COLORS = dict(zip(PHASES, (0, 8, 5, 4, 3, 2, 6, 1, 7), strict=True))
LEDGER_COLORS = (
    ("ledger/kept", 0), ("ledger/dropped_positive", 4), ("ledger/dropped_negative", 5),
    ("ledger/no_signal", 7), ("ledger/failed", 1), ("ledger/ended_early", 8),
)  # fmt: skip
SPEED = "Tokens that the policy wrote, divided by the wall time of the step."
TIME = "The wall time of each step by phase; phases are exclusive."
OUTCOMES = (
    "The outcome of every generated trajectory: kept for the learner, dropped by RoC, in a group whose "
    "rewards are all equal (no signal), failed, or ended early. Nothing is dropped uncounted."
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
