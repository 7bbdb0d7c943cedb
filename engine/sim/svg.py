"""The simulator's pictures: makespan per policy, and replicas over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rocstar.engine.charts.drawing import NARROW, drawing, escape, nice_ticks
from rocstar.engine.charts.row_chart import BAR, OTHER_BAR, ChartRow, Mark, RowChart
from rocstar.engine.sim.cost import Cluster
from rocstar.engine.sim.flight import Flight, FlightSample
from rocstar.engine.sim.simulate import Outcome

SHADES = 8


def makespan_bars(title: str, ranked: Sequence[Outcome]) -> RowChart:
    """Return a bar per policy, and a line at the lower bound; the shortest makespan comes first."""
    rows = [
        ChartRow(
            o.policy,
            [
                Mark(
                    o.makespan_s,
                    kind=BAR if o.policy == "predictive" else OTHER_BAR,
                    text=f"{o.makespan_s:,.0f} s, {o.ratio:.2f}x",
                    short=f"{o.makespan_s:,.0f} s",
                )
            ],
        )
        for o in ranked
    ]
    ticks = {tick: f"{tick:,.12g} s" for tick in nice_ticks(0.0, ranked[-1].makespan_s, 4)}
    bound = ranked[0].bound_s
    return RowChart(title=title, rows=rows, ticks=ticks, line=(bound, f"lower bound {bound:,.0f} s"))


def occupancy(
    flights: Sequence[tuple[str, Flight]], title: str, *, width: int = 760, height: int = 0, standalone: bool = False
) -> str:
    """A band per policy: a row per replica, time to the right, darker where more of its KV pool is in use.

    All bands share one time axis; the flights must have been recorded. Replicas set the height.
    """
    end = max(flight.makespan_s for _, flight in flights)
    left, columns = (130, 120) if width > NARROW else (106, 60)
    inner = width - left - 20
    rows = flights[0][1].cluster.replicas
    row = max(1.0, min(6.0, 96 / rows))
    y, body = 36.0, []
    for name, flight in flights:
        grid = occupancy_grid(flight.samples, flight.cluster, end, columns)
        body.append(f'<text x="{left - 8}" y="{y + rows * row / 2 + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        body.append(f'<rect x="{left}" y="{y:.1f}" width="{inner}" height="{rows * row:.1f}" fill="var(--line)"/>')
        body += _shades(grid, left, y, inner / columns, row)
        y += rows * row + 10
    for tick in nice_ticks(0.0, end, 5 if width > NARROW else 4):
        x = left + inner * tick / end
        if tick <= end:
            body.append(f'<text class="tick" x="{x:.1f}" y="{y + 8:.1f}" text-anchor="middle">{tick:,.12g} s</text>')
    head = f'<text class="title" x="12" y="20">{escape(title)}</text>'
    return drawing(title, width, round(y + 18), head + "".join(body), standalone=standalone)


def _shades(grid: Sequence[Sequence[float]], left: float, y: float, width: float, height: float) -> list[str]:
    """One path per shade; equal neighbours of a row are one rectangle, empty cells are not drawn."""
    paths: dict[int, list[str]] = {}
    for r, cells in enumerate(grid):
        shades = [math.ceil(SHADES * min(cell, 1.0) - 1e-9) for cell in cells]
        start = 0
        for k in range(1, len(shades) + 1):
            if k == len(shades) or shades[k] != shades[start]:
                x, span = left + start * width, (k - start) * width
                paths.setdefault(shades[start], []).append(
                    f"M{x:.0f},{y + r * height:.1f}h{span:.0f}v{height:.1f}h-{span:.0f}z"
                )
                start = k
    return [
        f'<path d="{"".join(parts)}" fill="var(--c0)" opacity="{shade / SHADES:g}"/>'
        for shade, parts in sorted(paths.items())
        if shade
    ]


def occupancy_grid(samples: Sequence[FlightSample], cluster: Cluster, end_s: float, columns: int) -> list[list[float]]:
    """[replica][column]: share of the pool in use, the last sample before the column's end."""
    grid = [[0.0] * columns for _ in range(cluster.replicas)]
    latest = [(0, 0.0)] * cluster.replicas
    for sample in samples:
        column = min(columns - 1, int(columns * sample.at_s / end_s))
        since, value = latest[sample.replica]
        for k in range(since, column):
            grid[sample.replica][k] = value
        latest[sample.replica] = (column, sample.used_tokens / cluster.model.kv_tokens)
    for r, (since, value) in enumerate(latest):
        for k in range(since, columns):
            grid[r][k] = value if k == since else 0.0
    return grid
