"""What a user reads: the table on a terminal, and one HTML page with the pictures."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Protocol

from rocstar.engine.sim.outcome import Outcome
from rocstar.engine.sim.svg import NARROW, WIDTH

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


class Picture(Protocol):
    """Draws the same at any width, as one <svg> element."""

    def __call__(self, *, width: int) -> str: ...


def html_page(
    title: str, facts: Sequence[str], outcomes: Sequence[Outcome], pictures: Sequence[Picture]
) -> str:
    """One self-contained page. Each picture is drawn for a screen and again for a phone."""
    head = "".join(f"<th>{html.escape(h)}</th>" for h in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(o)) + "</tr>"
        for o in sorted(outcomes, key=lambda o: o.makespan_s)
    )
    lines = "".join(f"<p>{html.escape(fact)}</p>" for fact in facts)
    drawn = "".join(
        f'<div class="screen">{draw(width=WIDTH)}</div><div class="phone">{draw(width=NARROW)}</div>'
        for draw in pictures
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>"
        "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
        "color:#1c2430;background:#fff}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
        "h1,p{overflow-wrap:anywhere}"
        "td,th{padding:.2rem .6rem;text-align:right;vertical-align:bottom;border-bottom:1px solid #e6e9ee}"
        "td{white-space:nowrap}"
        "td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:#fff}"
        "svg{display:block;width:100%;margin:1rem 0}.scroll{overflow-x:auto}.phone{display:none}"
        "@media(max-width:600px){body{margin:1rem auto;padding:0 .75rem}h1{font-size:1.5rem}"
        ".screen{display:none}.phone{display:block}}"
        "@media(prefers-color-scheme:dark){body{color:#e8ebf0;background:#14181f}td,th{border-color:#2a313b}"
        "td:first-child,th:first-child{background:#14181f}}"
        f'</style><h1>{html.escape(title)}</h1>{lines}<div class="scroll"><table><tr>{head}</tr>{body}'
        f"</table></div>{drawn}</html>\n"
    )
