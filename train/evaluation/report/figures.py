"""The figures of an evaluation page: distributions of lengths, and the forest plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocstar.engine.charts import escape, nice_ticks
from rocstar.train.evaluation.report.set_reader import CellKind, Histogram
from rocstar.train.record.report.scales import format_tick
from rocstar.train.record.report.svg import (
    BOTTOM,
    LABEL_CHAR,
    LEFT,
    NARROW,
    Chart,
    header,
    nothing,
    svg_element,
)

ABOVE, BELOW = (CellKind.correct,), (CellKind.wrong, CellKind.truncated)
KIND_COLORS = {CellKind.correct: 0, CellKind.wrong: 1, CellKind.truncated: 4}
TOP, RIGHT = 52, 14


def length_chart(
    title: str, unit: str, histograms: Mapping[CellKind, Histogram], *, width: int = 520, height: int = 250
) -> str:
    """Draw the distributions of correct attempts above one axis and of wrong ones below, as shares of
    scored attempts."""
    kinds = [*ABOVE, *BELOW]
    number = sum(histograms[kind].number for kind in kinds)
    chart = Chart(title=title, unit=unit, series=())
    if not number:
        return svg_element(
            title, width, height, header(chart) + nothing(width, height), None, standalone=False
        )
    bin_width, bins = align_bins([histograms[kind] for kind in kinds])
    by_kind = dict(zip(kinds, bins, strict=True))
    up = max(by_kind[CellKind.correct])
    down = max(w + t for w, t in zip(by_kind[CellKind.wrong], by_kind[CellKind.truncated], strict=True))
    field = (LEFT, width - RIGHT, TOP, height - BOTTOM)
    scale = (field[3] - field[2]) / max(up + down, 1)
    zero = field[2] + up * scale
    step = (field[1] - field[0]) / len(bins[0])
    body = [header(chart), _length_legend([k for k in kinds if histograms[k].number], width)]
    for i in range(len(bins[0])):
        x = field[0] + i * step
        body.append(_bar(CellKind.correct, x, zero - by_kind[CellKind.correct][i] * scale, zero, step))
        below = zero
        for kind in BELOW:
            bottom = below + by_kind[kind][i] * scale
            body.append(_bar(kind, x, below, bottom, step))
            below = bottom
    body.append(f'<line class="axis" x1="{field[0]}" x2="{field[1]}" y1="{zero:.1f}" y2="{zero:.1f}"/>')
    body.append(_scale(bin_width, len(bins[0]), field[0], step, height, width))
    body.append(_sides(zero, up * scale, down * scale))
    data = _hover(unit, bin_width, by_kind, field[0], step, number)
    return svg_element(title, width, height, "".join(body), data, standalone=False)


def align_bins(histograms: list[Histogram]) -> tuple[int, list[list[int]]]:
    """Return the smallest common width, and the bins of each histogram in it, equally many."""
    width = max((h.width for h in histograms), default=1)
    found = [h.at_width(width) for h in histograms]
    longest = max(map(len, found), default=0)
    return width, [bins + [0] * (longest - len(bins)) for bins in found]


def _bar(kind: CellKind, x: float, top: float, bottom: float, step: float) -> str:
    if bottom - top < 0.05:
        return ""
    return (
        f'<rect x="{x + step * 0.06:.1f}" y="{top:.1f}" width="{step * 0.88:.1f}" '
        f'height="{bottom - top:.1f}" fill="var(--c{KIND_COLORS[kind]})"/>'
    )


def _length_legend(kinds: Sequence[CellKind], width: int) -> str:
    parts, x = [], float(LEFT)
    for kind in kinds:
        parts.append(
            f'<rect x="{x:.0f}" y="28" width="9" height="9" rx="2" fill="var(--c{KIND_COLORS[kind]})"/>'
            f'<text class="tick" x="{x + 13:.0f}" y="36.5">{kind.value}</text>'
        )
        x += 13 + 6.1 * len(kind.value) + 12
    return "".join(parts)


def _sides(zero: float, up: float, down: float) -> str:
    """Return the labels above and below the axis, where there is space."""
    sides = ((up, zero - up / 2, "correct"), (down, zero + down / 2, "wrong"))
    return "".join(
        f'<text class="tick" transform="translate({LEFT - 12},{y:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(name)}</text>'
        for size, y, name in sides
        if size > 44
    )


def _scale(bin_width: int, num_bins: int, left: float, step: float, height: int, width: int) -> str:
    """Return the ticks: bins of one number are labelled at their middle, wider ones at their edges."""
    last = bin_width * num_bins
    middle = step / 2 if bin_width == 1 else 0.0
    ticks = [t for t in nice_ticks(0.0, float(last), 4 if width <= NARROW else 7) if t == int(t) <= last]
    return "".join(
        f'<text class="tick" x="{left + t / bin_width * step + middle:.1f}" y="{height - BOTTOM + 16}" '
        f'text-anchor="middle">{t:,.0f}</text>'
        for t in ticks
        if bin_width > 1 or t < last
    )


def _hover(
    unit: str,
    bin_width: int,
    bins: Mapping[CellKind, Sequence[int]],
    left: float,
    step: float,
    number: int,
) -> dict[str, object]:
    num_bins = len(next(iter(bins.values())))
    heads = [
        f"{unit}: {i * bin_width:,}" + (f" to {(i + 1) * bin_width - 1:,}" if bin_width > 1 else "")
        for i in range(num_bins)
    ]
    rows = [
        {
            "label": kind.value,
            "color": KIND_COLORS[kind],
            "values": [f"{n:,} ({100 * n / number:.1f}%)" if n else "" for n in counts],
        }
        for kind, counts in bins.items()
    ]
    return {"x": [round(left + (i + 0.5) * step, 1) for i in range(num_bins)], "head": heads, "rows": rows}


MARGIN, FOREST_TOP, FOOT = 12.0, 60, 26
LINE = 18
"""The height of an estimate's line."""
GAP = 14
"""The space between two sets."""
TEXT, SHORT_TEXT = 118, 36
"""The width of an estimate in numbers; on a phone without its interval, which the table has."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score with its interval; `kind` is an index of `ESTIMATE_KINDS`."""

    kind: int
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A set with its estimates."""

    name: str
    detail: str
    estimates: Sequence[Estimate]


ESTIMATE_KINDS = (
    "failed attempts count as wrong",
    "failed attempts left out",
    "questions not found in training",
)
ESTIMATE_MARKS = ("dot", "ring", "diamond")
ESTIMATE_COLORS = (0, 7, 2)


def forest_plot(title: str, rows: Sequence[ForestRow], *, width: int = 1060) -> str:
    """Draw the plot; the number of rows sets its height. On a phone a set's name has its own line."""
    is_narrow = width <= NARROW
    longest = max((max(len(row.name), len(row.detail)) for row in rows), default=0)
    left = MARGIN if is_narrow else min(MARGIN + LABEL_CHAR * longest + 10, width / 3)
    axis = _Axis(left=left, right=width - (SHORT_TEXT if is_narrow else TEXT) - 2 * MARGIN)
    kinds = sorted({e.kind for row in rows for e in row.estimates})
    top = FOREST_TOP + (LINE * len(kinds) if is_narrow else LINE if len(kinds) > 1 else 0) - LINE
    body = [_heading(title), _forest_legend(kinds, left=MARGIN, is_stacked=is_narrow)]
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


def _forest_legend(kinds: Sequence[int], *, left: float, is_stacked: bool) -> str:
    if len(kinds) < 2 and kinds != [2]:
        return ""
    parts, x, y = [], left + 6, 38.0
    for kind in kinds:
        parts.append(
            f'{_mark(kind, x, y)}<text class="tick" x="{x + 10:.0f}" y="{y + 4}">'
            f"{ESTIMATE_KINDS[kind]}</text>"
        )
        if is_stacked:
            y += LINE
        else:
            x += 30 + 6.1 * len(ESTIMATE_KINDS[kind])
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
    color = f"var(--c{ESTIMATE_COLORS[e.kind]})"
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
    """Return a mark whose shape, not only its colour, shows the kind."""
    color = f"var(--c{ESTIMATE_COLORS[kind]})"
    if ESTIMATE_MARKS[kind] == "diamond":
        return f'<path d="M{x - 5.5},{y}l5.5,-5.5l5.5,5.5l-5.5,5.5z" fill="{color}" stroke="var(--paper)"/>'
    if ESTIMATE_MARKS[kind] == "ring":
        return f'<circle cx="{x}" cy="{y}" r="4" fill="var(--paper)" stroke="{color}" stroke-width="2"/>'
    return f'<circle cx="{x}" cy="{y}" r="5" fill="{color}" stroke="var(--paper)"/>'
