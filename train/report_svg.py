"""Charts as plain SVG text, without a plotting library.

A chart is drawn in user units and scales with its box. Colours are CSS variables, so one drawing serves a
light and a dark page; `standalone` adds the style sheet that a lone .svg file needs. Every number of a
chart also lies in its `data-chart` attribute, from which the page's script makes the hover tooltip.
"""

import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rocstar.train.report_scales import (
    Point,
    format_tick,
    format_value,
    nice_ticks,
    running_mean,
    spread,
)

LEFT, RIGHT, TOP, BOTTOM = 46, 104, 50, 30
MIN_LABEL_GAP = 14.0
SMOOTH_FROM = 12
"""Fewer points than this are joined as they are; more are also averaged."""

STYLE = """
.rc{font:12px/1.3 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
.rc .title{font-size:14px;font-weight:600;fill:var(--ink)}
.rc .unit,.rc .tick,.rc .mark-label{fill:var(--soft)}
.rc .tick{font-size:11px;font-variant-numeric:tabular-nums}
.rc .mark-label{font-size:11px}
.rc .label{font-weight:600}
.rc .grid{stroke:var(--line);stroke-width:1}
.rc .axis{stroke:var(--soft);stroke-width:1}
.rc .mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.rc .curve{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
.rc .cross{stroke:var(--soft);stroke-width:1;visibility:hidden}
"""
LIGHT = (
    "--paper:#ffffff;--ink:#1c2430;--soft:#5c6675;--line:#e6e9ee;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;"
    "--c3:#a6598b;--c4:#e69f00;--c5:#56b4e9;--c6:#8a8f2a;--c7:#9aa2ad;--c8:#2b4a9b"
)
DARK = (
    "--paper:#14181f;--ink:#e8ebf0;--soft:#9aa4b2;--line:#2a313b;--c0:#4ba3e3;--c1:#f0803c;--c2:#2fc79a;"
    "--c3:#d98bbd;--c4:#f0bc4a;--c5:#8fd0f5;--c6:#c2c65a;--c7:#79828f;--c8:#8ea4ea"
)
"""Okabe and Ito's palette, told apart by colour-blind readers, with lighter twins for dark pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve: points (x, y) with x ascending; a y of None is a gap."""

    label: str
    points: Sequence[Point]
    color: int


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
    """What to draw: curves over steps. `marks` are named steps (x, name), where a stage begins."""

    title: str
    unit: str
    """How values are written; also the subtitle unless one is given."""
    series: Sequence[Series]
    intervals: Sequence[Interval] = ()
    marks: Sequence[tuple[float, str]] = ()
    top: float | None = None
    """Upper end of the y axis; default: a round number above the data."""
    subtitle: str | None = None


def escape(text: object) -> str:
    """Text made safe for element content and quoted attributes."""
    return html.escape(str(text), quote=True)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plot area: data coordinates to user units."""

    width: float
    height: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    right: float = RIGHT

    def x(self, value: float) -> float:
        inside = self.width - LEFT - self.right
        return round(LEFT + inside * (value - self.x_low) / (self.x_high - self.x_low), 1)

    def y(self, value: float) -> float:
        inside = self.height - TOP - BOTTOM
        clamped = min(max(value, self.y_low), self.y_high)
        return round(TOP + inside * (1 - (clamped - self.y_low) / (self.y_high - self.y_low)), 1)


def line_chart(chart: Chart, *, width: int = 520, height: int = 250, standalone: bool = False) -> str:
    """The chart as one <svg> element."""
    values = [y for s in chart.series for _, y in s.points if y is not None]
    values += [v for i in chart.intervals for v in (i.value, i.low, i.high) if v is not None]
    xs = sorted({x for s in chart.series for x, _ in s.points} | {i.x for i in chart.intervals})
    if not values:
        return _svg(chart.title, width, height, _header(chart) + _nothing(width, height), None, standalone)
    top = chart.top if chart.top is not None else max(values)
    ticks = nice_ticks(min(0.0, *values), top)
    high = chart.top if chart.top is not None else ticks[-1]
    frame = _Frame(width, height, xs[0], max(xs[-1], xs[0] + 1), ticks[0], high)
    body = [
        _header(chart),
        _axes(frame, [t for t in ticks if t <= high], chart.unit),
        _marks(frame, chart.marks),
    ]
    body += [_curve(frame, s) for s in chart.series]
    body += [_interval(frame, i) for i in chart.intervals]
    body.append(_end_labels(frame, chart))
    return _svg(chart.title, width, height, "".join(body), _hover_data(frame, chart, xs), standalone)


def stacked_bars(
    title: str,
    unit: str,
    xs: Sequence[float],
    parts: Mapping[str, Sequence[float]],
    *,
    colors: Mapping[str, int],
    width: int = 520,
    height: int = 250,
) -> str:
    """One bar per x, made of the parts in their order from the bottom; a legend names them."""
    chart = Chart(title=title, unit=unit, series=())
    totals = [math.fsum(values[i] for values in parts.values()) for i in range(len(xs))]
    if not xs or max(totals) <= 0:
        return _svg(title, width, height, _header(chart) + _nothing(width, height), None, standalone=False)
    ticks = nice_ticks(0.0, max(totals))
    frame = _Frame(width, height, xs[0] - 0.5, xs[-1] + 0.5, 0.0, ticks[-1], right=14)
    step = min((b - a for a, b in pairwise(xs)), default=1.0)
    bar = max(0.6, (frame.x(xs[0] + step) - frame.x(xs[0])) * 0.86)
    body = [_header(chart), _axes(frame, ticks, unit), _legend(parts, colors)]
    for i, x in enumerate(xs):
        floor = 0.0
        for name, values in parts.items():
            if values[i] > 0:
                y, base = frame.y(floor + values[i]), frame.y(floor)
                body.append(
                    f'<rect x="{frame.x(x) - bar / 2:.1f}" y="{y}" width="{bar:.1f}" '
                    f'height="{base - y:.1f}" fill="var(--c{colors[name]})"/>'
                )
                floor += values[i]
    data = {
        "x": [frame.x(x) for x in xs],
        "head": [f"step {x:g}: {format_value(t, unit)}" for x, t in zip(xs, totals, strict=True)],
        "rows": [
            {
                "label": name,
                "color": colors[name],
                "values": [format_value(v, unit) if v else "" for v in values],
            }
            for name, values in parts.items()
        ],
    }
    return _svg(title, width, height, "".join(body), data, standalone=False)


def share_bar(percents: Mapping[str, int], *, colors: Mapping[str, int]) -> str:
    """One bar of 100% as HTML, with a legend of the same percents."""
    cells = "".join(
        f'<i style="width:{percent}%;background:var(--c{colors[name]})" title="{escape(name)}"></i>'
        for name, percent in percents.items()
    )
    legend = "".join(
        f'<li><b style="background:var(--c{colors[name]})"></b>{escape(name)} {percent}%</li>'
        for name, percent in percents.items()
    )
    return f'<div class="sharebar">{cells}</div><ul class="legend">{legend}</ul>'


def join_svgs(svgs: Sequence[str], *, width: int, height: int, gap: int = 16) -> str:
    """Drawings of one size side by side, as one picture with its own style sheet."""
    total = len(svgs) * width + (len(svgs) - 1) * gap
    inner = "".join(
        svg.replace("<svg ", f'<svg x="{i * (width + gap)}" width="{width}" height="{height}" ', 1)
        for i, svg in enumerate(svgs)
    )
    return _svg("", total, height, inner, None, standalone=True)


def _svg(
    title: str, width: int, height: int, body: str, data: Mapping[str, object] | None, standalone: bool
) -> str:
    attribute = f' data-chart="{escape(json.dumps(data))}"' if data is not None and not standalone else ""
    label = f' role="img" aria-label="{escape(title)}"' if title else ""
    if standalone:
        body = (
            f"<style>svg{{{LIGHT}}}@media(prefers-color-scheme:dark){{svg{{{DARK}}}}}{STYLE}</style>"
            f'<rect width="{width}" height="{height}" rx="8" fill="var(--paper)"/>{body}'
        )
    elif data is not None:
        body += f'<line class="cross" y1="{TOP}" y2="{height - BOTTOM}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rc" viewBox="0 0 {width} {height}"'
        f"{label}{attribute}>{body}</svg>"
    )


def _header(chart: Chart) -> str:
    subtitle = chart.unit if chart.subtitle is None else chart.subtitle
    return (
        f'<text class="title" x="{LEFT - 34}" y="18">{escape(chart.title)}'
        f'<tspan class="unit" dx="8" font-size="12" font-weight="400">{escape(subtitle)}</tspan></text>'
    )


def _nothing(width: int, height: int) -> str:
    return f'<text class="unit" x="{width / 2}" y="{height / 2}" text-anchor="middle">nothing recorded</text>'


def _axes(frame: _Frame, ticks: Sequence[float], unit: str) -> str:
    end = frame.width - frame.right
    parts = [
        f'<line class="{"axis" if tick == ticks[0] else "grid"}" x1="{LEFT}" x2="{end}" '
        f'y1="{frame.y(tick)}" y2="{frame.y(tick)}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{frame.y(tick) + 4}" text-anchor="end">'
        f"{format_tick(tick, unit)}</text>"
        for tick in ticks
    ]
    floor = frame.height - BOTTOM
    inside = [t for t in nice_ticks(frame.x_low, frame.x_high, 6) if frame.x_low <= t <= frame.x_high]
    for tick in [t for t in inside if t == round(t)]:
        parts.append(
            f'<text class="tick" x="{frame.x(tick)}" y="{floor + 16}" text-anchor="middle">'
            f"{'step ' if tick == inside[0] else ''}{tick:,.0f}</text>"
        )
    return "".join(parts)


def _marks(frame: _Frame, marks: Sequence[tuple[float, str]]) -> str:
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


def _curve(frame: _Frame, series: Series) -> str:
    color = f"var(--c{series.color})"
    is_long = len(series.points) >= SMOOTH_FROM
    parts = [
        f'<circle cx="{frame.x(x)}" cy="{frame.y(y)}" r="{1.8 if is_long else 2.6}" fill="{color}" '
        f'opacity="{0.35 if is_long else 1}"/>'
        for x, y in series.points
        if y is not None
    ]
    for run in _runs(running_mean(series.points) if is_long else series.points):
        path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in run)
        parts.append(f'<polyline class="curve" stroke="{color}" points="{path}"/>')
    return "".join(parts)


def _interval(frame: _Frame, interval: Interval) -> str:
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


def _end_labels(frame: _Frame, chart: Chart) -> str:
    """The name and last value of each curve at its right end, pushed apart where they would touch."""
    ends: list[tuple[float, str, int]] = []
    for series in chart.series:
        smooth = running_mean(series.points) if len(series.points) >= SMOOTH_FROM else series.points
        known = [y for _, y in smooth if y is not None]
        if known:
            ends.append(
                (
                    frame.y(known[-1]),
                    f"{series.label} {format_value(known[-1], chart.unit)}".strip(),
                    series.color,
                )
            )
    if chart.intervals:
        last = chart.intervals[-1]
        ends.append((frame.y(last.value), f"{last.label} {format_value(last.value, chart.unit)}", 1))
    ends.sort()
    ys = spread([y for y, _, _ in ends], MIN_LABEL_GAP, frame.height - BOTTOM)
    x = frame.width - frame.right + 8
    return "".join(
        f'<text class="label" x="{x}" y="{y + 4:.1f}" fill="var(--c{color})">{escape(text)}</text>'
        for y, (_, text, color) in zip(ys, ends, strict=True)
    )


def _hover_data(frame: _Frame, chart: Chart, xs: Sequence[float]) -> dict[str, object]:
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
    return {"x": [frame.x(x) for x in xs], "head": [f"step {x:g}" for x in xs], "rows": rows}


def _interval_text(interval: Interval, unit: str) -> str:
    text = format_value(interval.value, unit)
    if interval.low is None or interval.high is None:
        return text
    return f"{text} [{format_value(interval.low, unit)}, {format_value(interval.high, unit)}]"


def _legend(parts: Mapping[str, Sequence[float]], colors: Mapping[str, int]) -> str:
    """Squares and names in one row under the title."""
    items, x = [], float(LEFT)
    for name in parts:
        items.append(
            f'<rect x="{x:.0f}" y="28" width="9" height="9" rx="2" fill="var(--c{colors[name]})"/>'
            f'<text class="tick" x="{x + 13:.0f}" y="36.5">{escape(name)}</text>'
        )
        x += 13 + 6.1 * len(name) + 12
    return "".join(items)
