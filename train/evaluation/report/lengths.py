"""How long correct and wrong attempts are: one distribution above the axis, the other below it."""

from collections.abc import Mapping, Sequence

from rocstar.engine.charts import escape, nice_ticks
from rocstar.train.evaluation.report.histogram import Histogram, aligned
from rocstar.train.evaluation.report.reading import CellKind
from rocstar.train.record.report.svg import BOTTOM, LEFT, NARROW, Chart, header, nothing, svg_element

ABOVE, BELOW = (CellKind.correct,), (CellKind.wrong, CellKind.truncated)
COLORS = {CellKind.correct: 0, CellKind.wrong: 1, CellKind.truncated: 4}
TOP, RIGHT = 52, 14


def mirrored(
    title: str, unit: str, histograms: Mapping[CellKind, Histogram], *, width: int = 520, height: int = 250
) -> str:
    """The distributions of `histograms` over one axis, each as a share of all scored attempts."""
    kinds = [*ABOVE, *BELOW]
    number = sum(histograms[kind].number for kind in kinds)
    chart = Chart(title=title, unit=unit, series=())
    if not number:
        return svg_element(
            title, width, height, header(chart) + nothing(width, height), None, standalone=False
        )
    bin_width, bins = aligned([histograms[kind] for kind in kinds])
    by_kind = dict(zip(kinds, bins, strict=True))
    up = max(by_kind[CellKind.correct])
    down = max(w + t for w, t in zip(by_kind[CellKind.wrong], by_kind[CellKind.truncated], strict=True))
    field = (LEFT, width - RIGHT, TOP, height - BOTTOM)
    scale = (field[3] - field[2]) / max(up + down, 1)
    zero = field[2] + up * scale
    step = (field[1] - field[0]) / len(bins[0])
    body = [header(chart), _legend([k for k in kinds if histograms[k].number], width)]
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


def _bar(kind: CellKind, x: float, top: float, bottom: float, step: float) -> str:
    if bottom - top < 0.05:
        return ""
    return (
        f'<rect x="{x + step * 0.06:.1f}" y="{top:.1f}" width="{step * 0.88:.1f}" '
        f'height="{bottom - top:.1f}" fill="var(--c{COLORS[kind]})"/>'
    )


def _legend(kinds: Sequence[CellKind], width: int) -> str:
    parts, x = [], float(LEFT)
    for kind in kinds:
        parts.append(
            f'<rect x="{x:.0f}" y="28" width="9" height="9" rx="2" fill="var(--c{COLORS[kind]})"/>'
            f'<text class="tick" x="{x + 13:.0f}" y="36.5">{kind.value}</text>'
        )
        x += 13 + 6.1 * len(kind.value) + 12
    return "".join(parts)


def _sides(zero: float, up: float, down: float) -> str:
    """What is above and what below, where there is room to say it."""
    sides = ((up, zero - up / 2, "correct"), (down, zero + down / 2, "wrong"))
    return "".join(
        f'<text class="tick" transform="translate({LEFT - 12},{y:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(name)}</text>'
        for size, y, name in sides
        if size > 44
    )


def _scale(bin_width: int, num_bins: int, left: float, step: float, height: int, width: int) -> str:
    """Bins of one number are named in their middle, wider ones at their edges."""
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
            "color": COLORS[kind],
            "values": [f"{n:,} ({100 * n / number:.1f}%)" if n else "" for n in counts],
        }
        for kind, counts in bins.items()
    ]
    return {"x": [round(left + (i + 0.5) * step, 1) for i in range(num_bins)], "head": heads, "rows": rows}
