"""The forest plot: a row per set, each score with its interval on one axis from 0 to 1."""

from collections.abc import Sequence
from dataclasses import dataclass

from rocstar.engine.charts import escape, nice_ticks
from rocstar.train.record.report.scales import format_tick
from rocstar.train.record.report.svg import LABEL_CHAR, NARROW, svg_element

MARGIN, TOP, FOOT = 12.0, 60, 26
LINE = 18
"""Height of an estimate's line."""
GAP = 14
"""Between two sets."""
TEXT, SHORT_TEXT = 118, 36
"""Width of an estimate in figures; on a phone without its interval, which the table has."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score with its interval; `kind` is an index of `KINDS`."""

    kind: int
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A set."""

    name: str
    detail: str
    estimates: Sequence[Estimate]


KINDS = ("failed attempts count as wrong", "failed attempts left out", "questions not found in training")
MARKS = ("dot", "ring", "diamond")
COLORS = (0, 7, 2)


def forest_plot(title: str, rows: Sequence[ForestRow], *, width: int = 1060) -> str:
    """The drawing; its height is that of its rows. On a phone a set's name has a line of its own."""
    is_narrow = width <= NARROW
    longest = max((max(len(row.name), len(row.detail)) for row in rows), default=0)
    left = MARGIN if is_narrow else min(MARGIN + LABEL_CHAR * longest + 10, width / 3)
    axis = _Axis(left=left, right=width - (SHORT_TEXT if is_narrow else TEXT) - 2 * MARGIN)
    kinds = sorted({e.kind for row in rows for e in row.estimates})
    top = TOP + (LINE * len(kinds) if is_narrow else LINE if len(kinds) > 1 else 0) - LINE
    body = [_heading(title), _legend(kinds, left=MARGIN, is_stacked=is_narrow)]
    lines, y = [], float(top)
    for row in rows:
        lines.append(_named(row, y, is_narrow))
        y += LINE if is_narrow else 0
        for estimate in row.estimates:
            lines.append(_estimate(axis, estimate, y + LINE / 2, width))
            y += LINE
        y += GAP + (0 if is_narrow or len(row.estimates) > 1 else LINE)
    height = int(y + FOOT)
    body += [_ticks(axis, top - 4, y - GAP / 2), *lines]
    return svg_element(title, width, height, "".join(body), None, standalone=False)


@dataclass(frozen=True, slots=True)
class _Axis:
    left: float
    right: float

    def x(self, value: float) -> float:
        return round(self.left + (self.right - self.left) * min(max(value, 0.0), 1.0), 1)


def _heading(title: str) -> str:
    return (
        f'<text class="title" x="{MARGIN}" y="18">{escape(title)}'
        '<tspan class="unit" dx="8" font-size="12" font-weight="400">95% intervals</tspan></text>'
    )


def _legend(kinds: Sequence[int], *, left: float, is_stacked: bool) -> str:
    if len(kinds) < 2 and kinds != [2]:
        return ""
    parts, x, y = [], left + 6, 38.0
    for kind in kinds:
        parts.append(
            f'{_mark(kind, x, y)}<text class="tick" x="{x + 10:.0f}" y="{y + 4}">{KINDS[kind]}</text>'
        )
        if is_stacked:
            y += LINE
        else:
            x += 30 + 6.1 * len(KINDS[kind])
    return "".join(parts)


def _ticks(axis: _Axis, top: float, floor: float) -> str:
    return "".join(
        f'<line class="grid" x1="{axis.x(t)}" x2="{axis.x(t)}" y1="{top}" y2="{floor}"/>'
        f'<text class="tick" x="{axis.x(t)}" y="{floor + 16}" text-anchor="middle">{format_tick(t, "share")}'
        "</text>"
        for t in nice_ticks(0.0, 1.0, 4)
        if 0 <= t <= 1
    )


def _named(row: ForestRow, y: float, is_narrow: bool) -> str:
    detail = f'<tspan class="unit" dx="6" font-weight="400">{escape(row.detail)}</tspan>'
    if is_narrow:
        return f'<text class="label" x="{MARGIN}" y="{y + 13}">{escape(row.name)}{detail}</text>'
    return (
        f'<text class="label" x="{MARGIN}" y="{y + 13}">{escape(row.name)}</text>'
        f'<text class="tick" x="{MARGIN}" y="{y + 28}">{escape(row.detail)}</text>'
    )


def _estimate(axis: _Axis, e: Estimate, y: float, width: int) -> str:
    color = f"var(--c{COLORS[e.kind]})"
    whiskers = ""
    if e.low is not None and e.high is not None:
        low, high = axis.x(e.low), axis.x(e.high)
        whiskers = (
            f'<path d="M{low},{y - 4}v8M{low},{y}H{high}M{high},{y - 4}v8" stroke="{color}" '
            'stroke-width="2" fill="none"/>'
        )
    text = f"{e.value:.3f}"
    if e.low is not None and e.high is not None and width > NARROW:
        text += f" [{e.low:.2f}, {e.high:.2f}]"
    weight = "label" if e.kind == 0 else "tick"
    return (
        f"{whiskers}{_mark(e.kind, axis.x(e.value), y)}"
        f'<text class="{weight}" x="{width - MARGIN}" y="{y + 4}" text-anchor="end">{text}</text>'
    )


def _mark(kind: int, x: float, y: float) -> str:
    """Told apart by its form, not by its colour alone."""
    color = f"var(--c{COLORS[kind]})"
    if MARKS[kind] == "diamond":
        return f'<path d="M{x - 5.5},{y}l5.5,-5.5l5.5,5.5l-5.5,5.5z" fill="{color}" stroke="var(--paper)"/>'
    if MARKS[kind] == "ring":
        return f'<circle cx="{x}" cy="{y}" r="4" fill="var(--paper)" stroke="{color}" stroke-width="2"/>'
    return f'<circle cx="{x}" cy="{y}" r="5" fill="{color}" stroke="var(--paper)"/>'
