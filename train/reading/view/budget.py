"""The budget of a step: wall time by phase, and the outcome of its trajectories and tool calls."""

import math
from collections.abc import Sequence
from functools import partial

from rocstar.engine.charts.bars import stacked_bars
from rocstar.engine.charts.drawing import Figure
from rocstar.train.reading.view.curves import rows_of
from rocstar.train.record.console_text import number, time_percents
from rocstar.train.record.metrics import Row
from rocstar.train.record.time_budget import PHASES

PHASE_COLORS = dict(zip(PHASES, (0, 8, 5, 4, 3, 2, 6, 1, 7), strict=True))
STATUS, STATUS_COLORS = "tool/status/", 9
LEDGER_COLORS = {"kept": 0, "dropped positive": 4, "dropped negative": 5, "no signal": 7, "failed": 1}


def time_shares(rows: Sequence[Row]) -> list[tuple[str, int, int]]:
    """Name, percent and colour of each phase that took time in the whole run; the percents sum to 100."""
    steps = _timed(rows)
    sums = {f"time/{p}": math.fsum(number(row, f"time/{p}") or 0.0 for row in steps) for p in PHASES}
    return [(_words(name), percent, PHASE_COLORS[name]) for name, percent in time_percents(sums).items()]


def time_bars(rows: Sequence[Row]) -> Figure | None:
    """Each step's wall time; None for a run that measured none."""
    steps = _timed(rows)
    if not steps:
        return None
    shown = {name for name, _, _ in time_shares(rows)}
    parts = {
        _words(p): [number(row, f"time/{p}") or 0.0 for row in steps] for p in PHASES if _words(p) in shown
    }
    colors = {_words(name): color for name, color in PHASE_COLORS.items()}
    xs = [row["step"] for row in steps]
    draw = partial(stacked_bars, "Time of each step", "s", xs, parts, colors=colors)
    caption = "The wall time of each step by phase; phases are exclusive."
    return Figure(draw, caption, is_wide=True)


def ledger_bars(rows: Sequence[Row]) -> Figure | None:
    """The outcome of each step's trajectories; None for a run without a ledger."""
    steps = [row for row in rows_of(rows, "rl") if number(row, "ledger/generated") is not None]
    if not steps:
        return None
    parts = {
        name: [number(row, f"ledger/{name.replace(' ', '_')}") or 0.0 for row in steps]
        for name in LEDGER_COLORS
    }
    parts = {name: counts for name, counts in parts.items() if any(counts)}
    xs = [row["step"] for row in steps]
    draw = partial(stacked_bars, "Ledger", "trajectories", xs, parts, colors=LEDGER_COLORS)
    caption = "The outcome of every generated trajectory: kept for the learner, dropped by RoC, in a group "
    caption += "whose rewards are all equal (no signal), or failed. Nothing is dropped uncounted."
    return Figure(draw, caption, is_wide=True)


def status_bars(rows: Sequence[Row]) -> Figure | None:
    """How the tool calls of each step ended; None for a run without any."""
    steps = rows_of(rows, "rl")
    names = sorted({name for row in steps for name in row if name.startswith(STATUS)})
    parts = {
        _words(name.removeprefix(STATUS)): [number(row, name) or 0.0 for row in steps]
        for name in names
        if any(number(row, name) for row in steps)
    }
    if not parts:
        return None
    colors = {name: place % STATUS_COLORS for place, name in enumerate(parts)}
    draw = partial(stacked_bars, "Tool calls", "calls", [row["step"] for row in steps], parts, colors=colors)
    return Figure(draw, "Tool calls of each step by the status in which they ended.", is_wide=True)


def _timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows_of(rows, "rl") if number(row, "time/step") is not None]


def _words(name: str) -> str:
    return name.replace("_", " ")
