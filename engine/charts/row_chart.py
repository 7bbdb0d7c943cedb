"""A chart with a row per name: values with their intervals, on one axis across.

A mark's shape, not only its colour, shows its kind. On a phone a row's name has a line of its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rocstar.engine.charts.drawing import LABEL_CHAR, NARROW, drawing, escape

MARGIN, FOOT = 12.0, 26
LINE, GAP = 18, 14
"""Heights of a mark's line, and of the space between two rows."""
KINDS = (("dot", 0), ("ring", 7), ("diamond", 2))
"""Shape and colour of each kind of mark."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A value, with its interval if both ends are known; a NaN is drawn as too little data."""

    value: float
    low: float | None = None
    high: float | None = None
    kind: int = 0
    """An index of `KINDS`."""
    text: str = ""
    """The value at the right end."""
    short: str = ""
    """The text for a phone."""


@dataclass(frozen=True, slots=True)
class ChartRow:
    name: str
    marks: Sequence[Mark]
    detail: str = ""
    reference: float | None = None
    """A value to compare the marks with, drawn as a grey line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChart:
    title: str
    subtitle: str = ""
    rows: Sequence[ChartRow]
    ticks: Mapping[float, str]
    """Labels by value; the first and the last end the axis."""
    legend: Mapping[int, str] = field(default_factory=dict)
    """Names of the kinds of marks."""
    line: tuple[float, str] | None = None
    """A dashed line across all rows, and its label."""


def row_chart(chart: RowChart, *, width: int = 760, height: int = 0, standalone: bool = False) -> str:
    """Draw the chart; the number of rows sets its height."""
    is_narrow = width <= NARROW
    low, *_, high = chart.ticks
    names = [text for row in chart.rows for text in (row.name, row.detail)]
    widest = width - 2 * MARGIN if is_narrow else width / 3
    left = MARGIN + 8 if is_narrow else min(MARGIN + LABEL_CHAR * max(map(len, names), default=0) + 10, widest)
    texts = [mark.short if is_narrow else mark.text for row in chart.rows for mark in row.marks]
    right = width - MARGIN - 8 - LABEL_CHAR * 0.85 * max(map(len, texts), default=0)

    def x(value: float) -> float:
        share = (value - low) / (high - low)
        return round(left + (right - left) * min(max(share, 0.0), 1.0), 1)

    legend, top = _legend(chart.legend, is_narrow)
    lines, y = [], top
    for row in chart.rows:
        lines.append(_name(row, y, int(widest / LABEL_CHAR), is_narrow))
        begin = y + (LINE if is_narrow else 0)
        end = begin + LINE * max(len(row.marks), 2 if row.detail and not is_narrow else 1)
        if row.reference is not None:
            at = x(row.reference)
            lines.append(f'<path d="M{at},{begin}V{end}" stroke="var(--soft)" stroke-width="2"/>')
        for k, mark in enumerate(row.marks):
            lines.append(_mark_line(mark, x, begin + LINE * (k + 0.5), width, is_narrow))
        y = end + GAP
    floor = y - GAP / 2
    grid = "".join(
        f'<line class="grid" x1="{x(tick)}" x2="{x(tick)}" y1="{top - 4}" y2="{floor}"/>'
        f'<text class="tick" x="{x(tick)}" y="{floor + 16}" text-anchor="middle">{escape(label)}</text>'
        for tick, label in chart.ticks.items()
    )
    if chart.line is not None:
        at, label = x(chart.line[0]), chart.line[1]
        lines.append(
            f'<path d="M{at},{top - 4}V{floor}" stroke="var(--c1)" stroke-width="1.6" '
            'stroke-dasharray="4 3"/>'
            f'<text class="tick" x="{at}" y="{floor + 30}" text-anchor="middle">{escape(label)}</text>'
        )
        floor += 14 if label else 0
    subtitle = f'<tspan class="unit" dx="8" font-size="12" font-weight="400">{escape(chart.subtitle)}</tspan>'
    title = f'<text class="title" x="{MARGIN}" y="18">{escape(chart.title)}{subtitle}</text>'
    body = "".join([title, legend, grid, *lines])
    return drawing(chart.title, width, int(floor + FOOT), body, standalone=standalone)


def _legend(names: Mapping[int, str], is_narrow: bool) -> tuple[str, float]:
    """Return the legend, one line on a screen, and where the rows begin."""
    parts, x, y = [], MARGIN + 6, 38.0
    for kind, name in names.items():
        parts.append(f'{_shape(kind, x, y)}<text class="tick" x="{x + 10:.0f}" y="{y + 4}">{escape(name)}</text>')
        x += 0 if is_narrow else 30 + 6.1 * len(name)
        y += LINE if is_narrow else 0
    return "".join(parts), y + (8 if is_narrow or not names else LINE + 4)


def _name(row: ChartRow, y: float, most: int, is_narrow: bool) -> str:
    def fit(text: str, chars: int) -> str:
        return escape(text if len(text) <= chars else text[: max(1, chars - 1)] + "…")

    if is_narrow:
        detail = f'<tspan class="unit" dx="6" font-weight="400">{escape(row.detail)}</tspan>'
        name = fit(row.name, most - len(row.detail))
        return f'<text class="label" x="{MARGIN}" y="{y + 13}">{name}{detail if row.detail else ""}</text>'
    detail = f'<text class="tick" x="{MARGIN}" y="{y + 28}">{fit(row.detail, most)}</text>'
    name = f'<text class="label" x="{MARGIN}" y="{y + 13}">{fit(row.name, most)}</text>'
    return name + (detail if row.detail else "")


def _mark_line(mark: Mark, x: Callable[[float], float], y: float, width: int, is_narrow: bool) -> str:
    if math.isnan(mark.value):
        return f'<text class="tick" x="{x(-math.inf) + 6}" y="{y + 4}">too little data</text>'
    color = f"var(--c{KINDS[mark.kind][1]})"
    whiskers = ""
    if mark.low is not None and mark.high is not None:
        low, high = x(mark.low), x(mark.high)
        whiskers = (
            f'<path d="M{low},{y - 4}v8M{low},{y}H{high}M{high},{y - 4}v8" stroke="{color}" '
            'stroke-width="2" fill="none"/>'
        )
    shape = _shape(mark.kind, x(mark.value), y)
    text = mark.short if is_narrow else mark.text
    style = "tick" if KINDS[mark.kind][0] in ("ring", "diamond") else "label"
    label = f'<text class="{style}" x="{width - MARGIN}" y="{y + 4}" text-anchor="end">{escape(text)}</text>'
    return f"{whiskers}{shape}{label if text else ''}"


def _shape(kind: int, x: float, y: float) -> str:
    shape, number = KINDS[kind]
    color = f"var(--c{number})"
    if shape == "diamond":
        return f'<path d="M{x - 5.5},{y}l5.5,-5.5l5.5,5.5l-5.5,5.5z" fill="{color}" stroke="var(--paper)"/>'
    if shape == "ring":
        return f'<circle cx="{x}" cy="{y}" r="4" fill="var(--paper)" stroke="{color}" stroke-width="2"/>'
    return f'<circle cx="{x}" cy="{y}" r="5" fill="{color}" stroke="var(--paper)"/>'
