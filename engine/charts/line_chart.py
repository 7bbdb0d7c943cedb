"""Curves over steps as plain SVG text.

Every number of a chart is also in its `data-chart` attribute, from which the page's script makes the tooltip.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rocstar.engine.charts.drawing import (
    LABEL_CHAR,
    NARROW,
    drawing,
    escape,
    format_tick,
    format_value,
    nice_ticks,
)

Point = tuple[float, float | None]
"""(x, y); a y of None is a gap."""

LEFT, RIGHT, TOP, BOTTOM = 46, 104, 50, 30
MIN_LABEL_GAP = 14.0
SMOOTH_FROM = 12
"""Fewer points than this are joined as they are; more are also averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve: points (x, y) with x ascending; a y of None is a gap."""

    label: str
    points: Sequence[Point]
    color: int
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high): a shaded interval around the curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A measured value with its interval, drawn as a dot with whiskers."""

    x: float
    value: float
    low: float | None
    high: float | None
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: curves over steps. `marks` are named steps (x, name), where a stage begins."""

    title: str
    unit: str
    """How values are written; also the subtitle unless one is given."""
    series: Sequence[Series]
    intervals: Sequence[Interval] = ()
    marks: Sequence[tuple[float, str]] = ()
    top: float | None = None
    """Upper end of the y axis; default: a round number above the data."""
    subtitle: str | None = None
    over: str = "step"
    """The quantity of x."""
    is_smoothed: bool = True
    """Draw a long curve as its running mean, with the points behind it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The plot area: data coordinates to user units."""

    width: float
    height: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    right: float = RIGHT
    top: float = TOP

    def x(self, value: float) -> float:
        inside = self.width - LEFT - self.right
        return round(LEFT + inside * (value - self.x_low) / (self.x_high - self.x_low), 1)

    def y(self, value: float) -> float:
        inside = self.height - self.top - BOTTOM
        clamped = min(max(value, self.y_low), self.y_high)
        return round(self.top + inside * (1 - (clamped - self.y_low) / (self.y_high - self.y_low)), 1)


def line_chart(chart: Chart, *, width: int = 520, height: int = 250, standalone: bool = False) -> str:
    """The chart as one <svg> element."""
    values = [y for s in chart.series for _, y in s.points if y is not None]
    values += [v for i in chart.intervals for v in (i.value, i.low, i.high) if v is not None]
    values += [high for s in chart.series for _, _, high in s.band]
    xs = sorted({x for s in chart.series for x, _ in s.points} | {i.x for i in chart.intervals})
    if not values:
        return svg_element(
            chart.title, width, height, header(chart) + nothing(width, height), None, standalone
        )
    top = chart.top if chart.top is not None else max(values)
    ticks = nice_ticks(min(0.0, *values), top)
    high = chart.top if chart.top is not None else ticks[-1]
    ends = _ends(chart)
    longest = max((len(text) for _, text, _ in ends), default=0)
    right = max(14 + LABEL_CHAR * longest, RIGHT if width > NARROW else 0)
    frame = Frame(width, height, xs[0], max(xs[-1], xs[0] + 1), ticks[0], high, right)
    body = [
        header(chart),
        axes(frame, [t for t in ticks if t <= high], chart.unit, chart.over),
        _marks(frame, chart.marks),
    ]
    body += [_curve(frame, s, is_smoothed=chart.is_smoothed) for s in chart.series]
    body += [_interval(frame, i) for i in chart.intervals]
    body.append(_end_labels(frame, ends))
    return svg_element(chart.title, width, height, "".join(body), _hover_data(frame, chart, xs), standalone)


def join_svgs(svgs: Sequence[str], *, width: int, height: int, gap: int = 16) -> str:
    """Drawings of one size side by side, as one picture with its own style sheet."""
    total = len(svgs) * width + (len(svgs) - 1) * gap
    inner = "".join(
        svg.replace("<svg ", f'<svg x="{i * (width + gap)}" width="{width}" height="{height}" ', 1)
        for i, svg in enumerate(svgs)
    )
    return svg_element("", total, height, inner, None, standalone=True)


def svg_element(
    title: str, width: int, height: int, body: str, data: Mapping[str, object] | None, standalone: bool
) -> str:
    """A drawing; on a page with the numbers behind it, from which the page's script makes the tooltip."""
    if standalone or data is None:
        return drawing(title, width, height, body, standalone=standalone)
    body += f'<line class="cross" y1="{TOP}" y2="{height - BOTTOM}"/>'
    return drawing(title, width, height, body, data=json.dumps(data))


def header(chart: Chart) -> str:
    subtitle = chart.unit if chart.subtitle is None else chart.subtitle
    return (
        f'<text class="title" x="{LEFT - 34}" y="18">{escape(chart.title)}'
        f'<tspan class="unit" dx="8" font-size="12" font-weight="400">{escape(subtitle)}</tspan></text>'
    )


def nothing(width: int, height: int) -> str:
    return f'<text class="unit" x="{width / 2}" y="{height / 2}" text-anchor="middle">nothing recorded</text>'


def axes(frame: Frame, ticks: Sequence[float], unit: str, over: str = "step") -> str:
    end = frame.width - frame.right
    parts = [
        f'<line class="{"axis" if tick == ticks[0] else "grid"}" x1="{LEFT}" x2="{end:.1f}" '
        f'y1="{frame.y(tick)}" y2="{frame.y(tick)}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{frame.y(tick) + 4}" text-anchor="end">'
        f"{format_tick(tick, unit)}</text>"
        for tick in ticks
    ]
    floor = frame.height - BOTTOM
    count = 6 if frame.width > NARROW else 4
    inside = [t for t in nice_ticks(frame.x_low, frame.x_high, count) if frame.x_low <= t <= frame.x_high]
    for tick in [t for t in inside if t == round(t)]:
        parts.append(
            f'<text class="tick" x="{frame.x(tick)}" y="{floor + 16}" text-anchor="middle">'
            f"{f'{over} ' if tick == inside[0] else ''}{tick:,.0f}</text>"
        )
    return "".join(parts)


def _marks(frame: Frame, marks: Sequence[tuple[float, str]]) -> str:
    floor = frame.height - BOTTOM
    return "".join(
        f'<line class="mark" x1="{frame.x(x)}" x2="{frame.x(x)}" y1="{TOP - 12}" y2="{floor}"/>'
        f'<text class="mark-label" x="{frame.x(x) + 4}" y="{TOP - 4}">{escape(name)}</text>'
        for x, name in marks
    )


def _runs(points: Sequence[Point]) -> Iterator[list[tuple[float, float]]]:
    """The stretches between gaps."""
    run: list[tuple[float, float]] = []
    for x, y in points:
        if y is not None:
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _curve(frame: Frame, series: Series, *, is_smoothed: bool) -> str:
    """Points joined by a line; many points are faint around their running mean."""
    color = f"var(--c{series.color})"
    is_long = is_smoothed and len(series.points) >= SMOOTH_FROM
    at = [(frame.x(x), frame.y(y)) for x, y in series.points if y is not None]
    dots = "".join(f"M{x},{y}h.01" for x, y in at)
    faint = ' stroke-width="3.6" opacity=".35"' if is_long else ' stroke-width="5.2"'
    # One path for all: a circle for each point would be most of the page.
    parts = [f'<path class="dots" stroke="{color}"{faint} d="{dots}"/>'] if at else []
    if series.band:
        edge = [f"{frame.x(x)},{frame.y(high)}" for x, _, high in series.band]
        edge += [f"{frame.x(x)},{frame.y(low)}" for x, low, _ in reversed(series.band)]
        parts.append(f'<polygon points="{" ".join(edge)}" fill="{color}" opacity=".16"/>')
    for run in _runs(running_mean(series.points) if is_long else series.points):
        path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in run)
        parts.append(f'<polyline class="curve" stroke="{color}" points="{path}"/>')
    if at:
        parts.append(f'<circle class="last" cx="{at[-1][0]}" cy="{at[-1][1]}" r="3" fill="{color}"/>')
    return "".join(parts)


def _interval(frame: Frame, interval: Interval) -> str:
    x, y = frame.x(interval.x), frame.y(interval.value)
    whiskers = ""
    if interval.low is not None and interval.high is not None:
        low, high = frame.y(interval.low), frame.y(interval.high)
        whiskers = (
            f'<path d="M{x - 4},{low}h8M{x},{low}V{high}M{x - 4},{high}h8" stroke="var(--c1)" '
            'stroke-width="1.6" fill="none"/>'
        )
    dot = f'{whiskers}<circle cx="{x}" cy="{y}" r="4.5" fill="var(--c1)" stroke="var(--paper)"/>'
    # The last one is named at the right end.
    if interval.x >= frame.x_high:
        return dot
    text, above = (
        format_value(interval.value, "reward"),
        frame.y(max(interval.value, interval.high or 0.0)) - 7,
    )
    return f'{dot}<text class="label" x="{x + 7}" y="{above:.1f}" fill="var(--c1)">{text}</text>'


def _ends(chart: Chart) -> list[tuple[float, str, int]]:
    """Return the last value of each curve, its label (with the step, if it is not the last one), and its
    color."""
    ends = []
    for series in chart.series:
        known = [(x, y) for x, y in series.points if y is not None]
        if known:
            x, y = known[-1]
            name = (
                series.label if x == series.points[-1][0] else f"{series.label} {chart.over} {x:g}:".strip()
            )
            ends.append((y, f"{name} {format_value(y, chart.unit)}".strip(), series.color))
    if chart.intervals:
        last = chart.intervals[-1]
        ends.append((last.value, f"{last.label} {format_value(last.value, chart.unit)}", 1))
    return ends


def _end_labels(frame: Frame, ends: Sequence[tuple[float, str, int]]) -> str:
    """The labels at their heights, pushed apart where they would touch."""
    placed = sorted((frame.y(value), text, color) for value, text, color in ends)
    ys = spread([y for y, _, _ in placed], MIN_LABEL_GAP, frame.height - BOTTOM)
    x = frame.width - frame.right + 8
    return "".join(
        f'<text class="label" x="{x:.1f}" y="{y + 4:.1f}" fill="var(--c{color})">{escape(text)}</text>'
        for y, (_, text, color) in zip(ys, placed, strict=True)
    )


def _hover_data(frame: Frame, chart: Chart, xs: Sequence[float]) -> dict[str, object]:
    rows: list[dict[str, object]] = []
    for series in chart.series:
        by_x = dict(series.points)
        texts = [format_value(y, chart.unit) if (y := by_x.get(x)) is not None else "" for x in xs]
        rows.append({"label": series.label or chart.title, "color": series.color, "values": texts})
    if chart.intervals:
        texts_by_x = {i.x: _interval_text(i, chart.unit) for i in chart.intervals}
        rows.append(
            {"label": chart.intervals[0].label, "color": 1, "values": [texts_by_x.get(x, "") for x in xs]}
        )
    return {"x": [frame.x(x) for x in xs], "head": [f"{chart.over} {x:g}" for x in xs], "rows": rows}


def _interval_text(interval: Interval, unit: str) -> str:
    text = format_value(interval.value, unit)
    if interval.low is None or interval.high is None:
        return text
    return f"{text} [{format_value(interval.low, unit)}, {format_value(interval.high, unit)}]"


def running_mean(points: Sequence[Point]) -> list[Point]:
    """Each point replaced by the mean of a centred window of about a tenth of all; gaps stay gaps."""
    half = max(1, len(points) // 20)
    smooth: list[Point] = []
    for i, (x, y) in enumerate(points):
        near = [v for _, v in points[max(0, i - half) : i + half + 1] if v is not None]
        smooth.append((x, math.fsum(near) / len(near) if y is not None else None))
    return smooth


def spread(ys: Sequence[float], gap: float, limit: float) -> list[float]:
    """Ascending positions at least `gap` apart, none beyond `limit`, each near where it was."""
    placed: list[float] = []
    for y in ys:
        placed.append(max(y, placed[-1] + gap) if placed else y)
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], limit - gap * (len(placed) - 1 - i))
    return placed
