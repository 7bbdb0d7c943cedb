"""The output for users: a table for a terminal, and the sections of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rocstar.engine.sim.simulate import Outcome

HEADINGS = (
    "policy",
    "makespan",
    "x bound",
    "busy",
    "batch",
    "KV used",
    "recomputed",
    "preempted",
    "moved",
    "tail",
    "half the groups",
)


def cells(o: Outcome) -> tuple[str, ...]:
    """One row of the table, as text."""
    return (
        o.policy,
        f"{o.makespan_s:,.1f} s",
        f"{o.ratio:.3f}",
        f"{100 * o.utilisation:.1f}%",
        f"{o.mean_batch:.1f}",
        f"{100 * o.kv_occupancy:.0f}%",
        f"{100 * o.recomputed_share:.2f}%",
        f"{o.preemptions:,}",
        f"{o.migrations:,}",
        f"{o.tail_s:,.1f} s",
        f"{o.first_group_s:,.1f} s",
    )


def text_table(outcomes: Sequence[Outcome]) -> str:
    """The shortest makespan first; columns as wide as they need to be."""
    rows = [HEADINGS, *(cells(o) for o in sorted(outcomes, key=lambda o: o.makespan_s))]
    widths = [max(len(row[k]) for row in rows) for k in range(len(HEADINGS))]
    lines = []
    for row in rows:
        first = row[0].ljust(widths[0])
        rest = "  ".join(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append(f"{first}  {rest}".rstrip())
    return "\n".join(lines)


PageMaker = Callable[[str, Sequence[Mapping[str, Any]]], str]
"""Makes a page of a title and sections; rocstar.train has it."""
