"""Charts as data: curves or stacked bars over steps. static/chart.js draws them.

Chart.as_json() ──> {"title": "Reward", "series": [{"label": "mean", "x": [1, 2], "y": [0.5, None]}], ...}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        return {
            "title": self.title,
            "subtitle": self.unit if self.subtitle is None else self.subtitle,
            "unit": self.unit,
            "over": self.over,
            "caption": self.caption,
            "wide": self.is_wide,
            "stacked": self.is_stacked,
            "marks": [list(mark) for mark in self.marks],
            "heads": list(self.heads),
            "top": self.top,
            "series": [_series(one) for one in self.series],
        }


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
