"""The figures of an analysis: shares by class, ratios to the control, entropy by offset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rocstar.engine.charts import drawing, escape, nice_ticks
from rocstar.train.reading.analysis.findings import BEHIND, NAMES
from rocstar.train.reading.analysis.statistics.estimates import (
    BootstrapEstimate,
    ClassShare,
    ControlComparison,
)
from rocstar.train.reading.analysis.statistics.tally import Lead
from rocstar.train.reading.analysis.token_classes import CLASSES

TOP, ROW, FOOT, MARGIN = 46, 30, 30, 12
MOST_DOUBLINGS = 40
"""A larger ratio is drawn as unbounded."""
NARROW = 340
COLOURS: Final = {Lead.asked: 7, Lead.ok: 2, Lead.error: 1}
LEADS: Final = {Lead.asked: "no tool", Lead.ok: "good response", Lead.error: "failing response"}


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps numbers to user units, from left to right."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        inside = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(self.left + (self.right - self.left) * inside, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesDrawing:
    """A row per class: its share of the top fifth with its interval, and a line at its share of all
    tokens."""

    shares: Sequence[ClassShare]

    def __call__(self, *, width: int, height: int) -> str:
        rows = [
            (NAMES[name], found.of_top, found.of_all)
            for name, found in zip(CLASSES, self.shares, strict=True)
            if found.lift.num_tokens
        ]
        limits = [edge for _, e, _ in rows for edge in (e.value, e.high) if math.isfinite(edge)]
        ticks = nice_ticks(0.0, max([*limits, *(all_ for _, _, all_ in rows), 0.01]), 4)
        axis, lines = _axis_for(width, ticks[0], ticks[-1]), [_title("Share of the most uncertain fifth")]
        lines.append(_grid(axis, ticks, len(rows), [f"{tick:.0%}" for tick in ticks]))
        for k, (name, e, of_all) in enumerate(rows):
            y = _row(k)
            x = axis.x(of_all)
            lines += [
                _named(name, axis, y),
                f'<path d="M{x},{y - 9}v18" stroke="var(--soft)" stroke-width="2"/>',
                _whiskers(axis, e, y, 0),
            ]
        return _svg("Share of the top fifth by class of token", width, len(rows), lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatiosDrawing:
    """A row per comparison with the control, on a logarithmic axis; 1 is no difference."""

    behind: Mapping[str, ControlComparison]

    def __call__(self, *, width: int, height: int) -> str:
        rows = [(BEHIND[name], _logs(found.ratio)) for name, found in self.behind.items()]
        known = [v for _, e in rows for v in (e.value, e.low, e.high) if math.isfinite(v)]
        reach = max([math.ceil(max(map(abs, known), default=0.0)), 1])
        ticks = [float(k) for k in range(-reach, reach + 1)]
        axis, lines = _axis_for(width, -reach, reach), [_title("Ratio to the same offset without a tool")]
        lines.append(_grid(axis, ticks, len(rows), [f"{2.0**tick:g}x" for tick in ticks]))
        one, floor = axis.x(0.0), TOP + ROW * len(rows)
        lines.append(f'<path d="M{one},{TOP - 6}V{floor}" stroke="var(--c1)" stroke-dasharray="4 3"/>')
        for k, (name, e) in enumerate(rows):
            lines += [_named(f"after {name}", axis, _row(k)), _whiskers(axis, e, _row(k), 0)]
        return _svg("Top tokens after a response, relative to the control", width, len(rows), lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDrawing:
    """The mean entropy by offset from the start of a turn: a curve with its band for each kind of turn."""

    profiles: Mapping[Lead, Sequence[BootstrapEstimate]]
    window: int

    def __call__(self, *, width: int, height: int) -> str:
        curves = {lead: _known(found) for lead, found in self.profiles.items()}
        points = [point for curve in curves.values() for point in curve]
        ticks = nice_ticks(0.0, max([0.1, *(e.high for _, e in points)]), 4)
        last = max([offset for offset, _ in points] or [1])
        across = _Axis(44, width - 14, 0, max(last, 1))
        up = _Axis(height - FOOT, TOP + 16, ticks[0], ticks[-1])
        lines = [_title("Mean entropy by offset from the begin of a turn, nats")]
        for tick in ticks:
            y = up.x(tick)
            lines.append(f'<line class="grid" x1="44" x2="{width - 14}" y1="{y}" y2="{y}"/>')
            lines.append(f'<text class="tick" x="38" y="{y + 4}" text-anchor="end">{tick:g}</text>')
        for tick in (t for t in nice_ticks(0, max(last, 1), 6) if t <= last):
            x = across.x(tick)
            lines.append(f'<text class="tick" x="{x}" y="{height - 12}" text-anchor="middle">{tick:g}</text>')
        x = across.x(min(self.window, last))
        lines.append(f'<path class="mark" d="M{x},{TOP + 10}V{height - FOOT}"/>')
        for k, (lead, curve) in enumerate(curves.items()):
            lines.append(_curve(curve, across, up, COLOURS[lead]))
            lines.append(
                f'<text class="label" x="{44 + k * (width - 60) / 3:.0f}" y="40" '
                f'fill="var(--c{COLOURS[lead]})">{LEADS[lead]}</text>'
            )
        return drawing("Mean entropy by offset from the begin of a turn", width, height, "".join(lines))


def _curve(curve: Sequence[tuple[int, BootstrapEstimate]], across: _Axis, up: _Axis, colour: int) -> str:
    if not curve:
        return ""
    high = [f"{across.x(o)},{up.x(e.high)}" for o, e in curve]
    low = [f"{across.x(o)},{up.x(max(e.low, 0.0))}" for o, e in curve]
    line = " ".join(f"{across.x(o)},{up.x(e.value)}" for o, e in curve)
    return (
        f'<polygon points="{" ".join(high + low[::-1])}" fill="var(--c{colour})" opacity=".16"/>'
        f'<polyline class="curve" stroke="var(--c{colour})" points="{line}"/>'
    )


def _known(found: Sequence[BootstrapEstimate]) -> list[tuple[int, BootstrapEstimate]]:
    """Return the estimates with bounded intervals."""
    return [
        (offset, e)
        for offset, e in enumerate(found)
        if e.num_tokens and all(map(math.isfinite, (e.value, e.low, e.high)))
    ]


def _logs(e: BootstrapEstimate) -> BootstrapEstimate:
    def log(value: float) -> float:
        known = math.log2(value) if value > 0 and math.isfinite(value) else math.copysign(math.inf, value - 1)
        return known if abs(known) <= MOST_DOUBLINGS else math.copysign(math.inf, known)

    value = math.nan if math.isnan(e.value) else log(e.value)
    return BootstrapEstimate(
        value=value, low=log(e.low), high=log(e.high), num_tasks=e.num_tasks, num_tokens=e.num_tokens
    )


def _axis_for(width: int, low: float, high: float) -> _Axis:
    """Return the axis: names are left of it, on a phone above their rows."""
    return _Axis(MARGIN + (14 if width <= NARROW else 290), width - MARGIN - 16, low, high)


def _row(k: int) -> float:
    return TOP + ROW * (k + 0.5)


def _title(text: str) -> str:
    return f'<text class="title" x="{MARGIN}" y="18">{escape(text)}</text>'


def _grid(axis: _Axis, ticks: Sequence[float], rows: int, labels: Sequence[str]) -> str:
    floor = TOP + ROW * rows
    return "".join(
        f'<line class="grid" x1="{axis.x(t)}" x2="{axis.x(t)}" y1="{TOP - 6}" y2="{floor}"/>'
        f'<text class="tick" x="{axis.x(t)}" y="{floor + 16}" text-anchor="middle">{label}</text>'
        for t, label in zip(ticks, labels, strict=True)
    )


def _named(name: str, axis: _Axis, y: float) -> str:
    if axis.left < 100:
        return f'<text class="tick" x="{axis.left}" y="{y - 8}">{escape(name)}</text>'
    return f'<text x="{axis.left - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'


def _whiskers(axis: _Axis, e: BootstrapEstimate, y: float, colour: int) -> str:
    if math.isnan(e.value):
        return f'<text class="tick" x="{axis.x(0.0) + 6}" y="{y + 4}">too little</text>'
    low, high, x = axis.x(e.low), axis.x(e.high), axis.x(e.value)
    return (
        f'<path d="M{low},{y - 4}v8M{low},{y}H{high}M{high},{y - 4}v8" stroke="var(--c{colour})" '
        f'stroke-width="2" fill="none"/>'
        f'<circle cx="{x}" cy="{y}" r="5" fill="var(--c{colour})" stroke="var(--paper)"/>'
    )


def _svg(title: str, width: int, rows: int, lines: Sequence[str]) -> str:
    return drawing(title, width, TOP + ROW * max(rows, 1) + FOOT, "".join(lines))
