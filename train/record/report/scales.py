"""Numbers as positions and as text: the arithmetic of the charts, each a pure function."""

import math
from collections.abc import Sequence

Point = tuple[float, float | None]
"""(x, y); a y of None is a gap."""


def format_value(value: float, unit: str) -> str:
    """A value as a person writes it: `4.1%`, `0.83`, `1,240`, `3.2 s`."""
    if unit == "share":
        return f"{100 * value:.0f}%" if abs(value) >= 0.0995 or value == 0 else f"{100 * value:.1f}%"
    suffix = " s" if unit == "s" else ""
    if abs(value) >= 1000:
        return f"{value:,.0f}{suffix}"
    if abs(value) >= 100 or value == 0:
        return f"{value:.0f}{suffix}"
    if abs(value) < 0.01:
        return f"{value:.2g}{suffix}"
    return f"{value:.1f}{suffix}" if abs(value) >= 10 else f"{value:.2f}{suffix}"


def format_tick(value: float, unit: str) -> str:
    """A value of an axis: round, so without needless zeros, in an exponent neither."""
    return (f"{100 * value:.4g}%" if unit == "share" else f"{value:,.12g}").replace("e-0", "e-")


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
