"""Charts of shares: stacked bars as SVG."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from rocstar.engine.charts.drawing import escape, format_value, nice_ticks
from rocstar.engine.charts.line_chart import (
    LEFT,
    TOP,
    Frame,
    axes,
    empty_chart,
    header,
    svg_element,
)

ROW = 16
"""Height of a row of the legend."""


def stacked_bars(
    title: str,
    unit: str,
    xs: Sequence[float],
    parts: Mapping[str, Sequence[float]],
    *,
    colors: Mapping[str, int],
    over: str = "step",
    heads: Sequence[str] = (),
    width: int = 520,
    height: int = 250,
) -> str:
    """One bar per x, made of the parts in their order from the bottom; a legend names them.

    Args:
        title, unit: of the values.
        xs: evenly spaced places of the bars.
        parts: values by name.
        colors: of the parts.
        over: what x counts.
        heads: texts of each bar's tooltip; default: its x.
        width, height: user units.
    """
    totals = [math.fsum(values[i] for values in parts.values()) for i in range(len(xs))]
    if not xs or max(totals) <= 0:
        return empty_chart(title, unit, width, height)
    ticks = nice_ticks(0.0, max(totals))
    legend, num_rows = _legend(parts, colors, width)
    top = TOP + ROW * (num_rows - 1)
    frame = Frame(width, height, xs[0] - 0.5, xs[-1] + 0.5, 0.0, ticks[-1], right=14, top=top)
    step = min((b - a for a, b in pairwise(xs)), default=1.0)
    bar = max(0.6, (frame.x(xs[0] + step) - frame.x(xs[0])) * 0.86)
    body = [header(title, unit), axes(frame, ticks, unit, over), legend]
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
        "head": [
            f"{head}: {format_value(total, unit)}"
            for head, total in zip(heads or [f"{over} {x:g}" for x in xs], totals, strict=True)
        ],
        "rows": [
            {
                "label": name,
                "color": colors[name],
                "values": [format_value(v, unit) if v else "" for v in values],
            }
            for name, values in parts.items()
        ],
    }
    return svg_element(title, width, height, "".join(body), data, standalone=False)


def _legend(parts: Mapping[str, Sequence[float]], colors: Mapping[str, int], width: int) -> tuple[str, int]:
    """Squares and names under the title, and in how many rows."""
    items, x, row = [], float(LEFT), 0
    for name in parts:
        size = 13 + 6.1 * len(name) + 12
        if x > LEFT and x + size > width:
            x, row = float(LEFT), row + 1
        y = 28 + ROW * row
        items.append(
            f'<rect x="{x:.0f}" y="{y}" width="9" height="9" rx="2" fill="var(--c{colors[name]})"/>'
            f'<text class="tick" x="{x + 13:.0f}" y="{y + 8.5}">{escape(name)}</text>'
        )
        x += size
    return "".join(items), row + 1
