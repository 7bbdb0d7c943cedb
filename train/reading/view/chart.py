"""Charts as data: curves or stacked bars over steps, and the curves of a run. static/chart.js draws them.

Chart.as_json() ──> {"title": "Reward", "series": [{"label": "mean", "x": [1, 2], "y": [0.5, None]}], ...}
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rocstar.train.record.console_text import number
from rocstar.train.record.metrics import Row, metric_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlottedEvaluation:
    """One evaluation of one set."""

    step: int
    set_name: str
    k: int
    value: float
    low: float | None
    high: float | None
    num_tasks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One chart of the page: metric names with the labels of their curves, and a caption."""

    title: str
    keys: Mapping[str, str]
    caption: str
    subtitle: str | None = None
    """Beside the title; default: the unit of the first metric."""
    top: float | None = None
    phase: str = "rl"
    is_dull_at_zero: bool = False
    """Left out where every value is 0."""
    unless_same_as: str = ""
    """Left out where every value is that of this metric."""
    has_evaluations: bool = False
    """With the held-out evaluations, of one run."""

    def says_something(self, steps: Sequence[Row]) -> bool:
        """Return True if a drawing of these steps shows anything."""
        values = [number(row, key) for row in steps for key in self.keys]
        if self.unless_same_as and values == [number(row, self.unless_same_as) for row in steps]:
            return False
        return any(v is not None and (v or not self.is_dull_at_zero) for v in values)


_ENTRIES = tomllib.loads(Path(__file__).with_name("plots.toml").read_text(encoding="utf-8"))
PLOTS = tuple(Plot(title=title, **entry) for title, entry in _ENTRIES.items())
"""The charts of a run, in their order."""


def plot_chart(plot: Plot, rows_by_run: Mapping[str, Sequence[Row]]) -> Chart:
    """Return the curves of a plot over the steps of its phase.

    A single run has a curve for each metric, and its reward has the evaluations of the main set. Several runs
    have a curve each, for the first metric that says something. Raises UnknownMetricError.
    """
    steps_by_run = {run: rows_of(rows, plot.phase) for run, rows in rows_by_run.items()}
    alone, keys, subtitle = len(rows_by_run) == 1, plot.keys, plot.subtitle
    unit = next(metric_of(key).unit for key in keys)
    if not alone and len(keys) > 1:
        single = [replace(plot, keys={key: label}) for key, label in keys.items()]
        said = (one for one in single if any(map(one.says_something, steps_by_run.values())))
        keys = next(said, single[0]).keys
        subtitle = ", ".join([*keys.values(), subtitle or unit])
    series: list[Series] = []
    for place, (run, steps) in enumerate(steps_by_run.items()):
        for k, (key, label) in enumerate(keys.items()):
            points = [(row["step"], number(row, key)) for row in steps]
            if any(y is not None for _, y in points):
                # A run has the same colour in all charts, also beside runs that lack this metric.
                color = 2 * k if alone else place
                series.append(Series(label=label if alone else run, color=color, points=points))
    marks: list[tuple[float, str]] = []
    if alone:
        (rows,), (steps,) = rows_by_run.values(), steps_by_run.values()
        stages = {str(row["stage"]): row["step"] for row in reversed(steps)}
        marks = [(step, stage) for stage, step in reversed(stages.items())] if len(stages) > 1 else []
        if plot.has_evaluations and (found := evaluations(rows)):
            series.append(evaluation_series(found, main_set_of(found), color=1))
    return Chart(
        title=plot.title, subtitle=subtitle, unit=unit, series=series, marks=marks, top=plot.top, caption=plot.caption
    )


def evaluations(rows: Sequence[Row]) -> list[PlottedEvaluation]:
    """Every evaluation by step; of several of one set at one step the last (a resumed run repeats some)."""
    found: dict[tuple[str, int], PlottedEvaluation] = {}
    for row in rows:
        for name in row:
            if not name.startswith("eval/"):  # most names of a row: a pattern takes ten times as long
                continue
            match = re.fullmatch(r"eval/([^/]+)/avg@(\d+)", name)
            value = number(row, name)
            if match is None or value is None:
                continue
            set_name, prefix = match[1], f"eval/{match[1]}"
            num_tasks = number(row, f"{prefix}/num_tasks")
            # An evaluation of the cold start came before the first RL step, whatever SFT counts.
            step = 0 if "sft" in (row["phase"], row["stage"]) else int(row["step"])
            found[set_name, step] = PlottedEvaluation(
                step=step,
                set_name=set_name,
                k=int(match[2]),
                value=value,
                low=number(row, f"{prefix}/ci_low"),
                high=number(row, f"{prefix}/ci_high"),
                num_tasks=None if num_tasks is None else int(num_tasks),
            )
    return sorted(found.values(), key=lambda e: (e.set_name, e.step))


def rows_of(rows: Sequence[Row], phase: str) -> list[Row]:
    """The rows of one phase, in order."""
    return [row for row in rows if row["phase"] == phase]


def main_set_of(found: Sequence[PlottedEvaluation]) -> str:
    """Return the set of the headline: `heldout`, else the first, or "" without evaluations."""
    names = [e.set_name for e in found]
    return "heldout" if "heldout" in names else next(iter(names), "")


def evaluation_series(found: Sequence[PlottedEvaluation], set_name: str, *, color: int, label: str = "") -> Series:
    """Return the scores of a set with their intervals."""
    mine = [e for e in found if e.set_name == set_name]
    return Series(
        label=label or set_name,
        points=[(e.step, e.value) for e in mine],
        band={e.step: (e.low, e.high) for e in mine},
        color=color,
        is_dots=True,
    )


Point = tuple[float, float | None]
"""(x, y); a y of None is a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve, or one part of stacked bars."""

    label: str
    points: Sequence[Point]
    color: int
    band: Mapping[float, tuple[float | None, float | None]] | None = None
    """(low, high) by x: the interval of a point."""
    is_dots: bool = False
    """Draw each point with its interval, and no line. Such points are never smoothed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series with a common unit."""

    title: str
    unit: str
    """How values are written, as of `Metric.unit`; also the subtitle unless one is given."""
    series: Sequence[Series]
    caption: str = ""
    subtitle: str | None = None
    over: str = "step"
    """The quantity of x."""
    marks: Sequence[tuple[float, str]] = ()
    """Named values of x, where a stage begins."""
    heads: Sequence[str] = ()
    """The name of each x of stacked bars in the tooltip; default: `over` and x."""
    top: float | None = None
    """Upper end of the y axis unless a value is larger; default: a round number above the data."""
    is_wide: bool = False
    is_stacked: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return what chart.js draws; a value that is not finite is None."""
        values = {field.name.removeprefix("is_"): getattr(self, field.name) for field in fields(self)}
        values["subtitle"] = self.unit if self.subtitle is None else self.subtitle
        return {**values, "series": [_series(one) for one in self.series]}


def _series(one: Series) -> dict[str, Any]:
    found: dict[str, Any] = {"label": one.label, "color": one.color, "dots": one.is_dots}
    found["x"] = [x for x, _ in one.points]
    found["y"] = [finite(y) for _, y in one.points]
    if one.band is not None:
        ends = [one.band.get(x, (None, None)) for x in found["x"]]
        found["low"], found["high"] = ([finite(end[k]) for end in ends] for k in (0, 1))
    return found


def finite(value: float | None) -> float | None:
    """Return a value as the tooltip shows it, with 7 digits: the text of 17 takes twice the time to send."""
    return float(f"{value:.7g}") if value is not None and math.isfinite(value) else None


def stacked(title: str, unit: str, xs: Sequence[float], parts: Mapping[str, Sequence[float]], **more: Any) -> Chart:
    """Return bars made of parts; `more`: `colors` by part, and fields of Chart."""
    colors = more.pop("colors")
    series = [
        Series(label=name, points=list(zip(xs, values, strict=True)), color=colors[name])
        for name, values in parts.items()
    ]
    return Chart(title=title, unit=unit, series=series, is_stacked=True, **more)
