"""Numbers as characters: the pieces of the console, each a pure function."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rocstar.engine.progress.progress import duration
from rocstar.train.record.time_budget import PHASES, whole_percents

BARS = "▁▂▃▄▅▆▇█"
PLAIN = (
    ("reward", "reward/mean", "{:.2f}"),
    ("tool errors", "tool/error_share", "{:.0%}"),
    ("in correct", "tool/error_share_in_correct", "{:.0%}"),
    ("tokens", "seq_len/mean", "{:.0f}"),
    ("turns", "num_turns/mean", "{:.1f}"),
    ("truncated", "is_truncated/mean", "{:.0%}"),
)
"""Label, metric and format of each part of a step's line."""


def number(row: Mapping[str, Any], name: str) -> float | None:
    """The metric of this name, or None where the row has none (or null)."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def metrics_texts(row: Mapping[str, Any]) -> list[str]:
    """Return the main metrics of a row, rounded: `reward 0.44`, `tool errors 5%`."""
    known = [(label, number(row, name), template) for label, name, template in PLAIN]
    return [f"{label} {template.format(value)}" for label, value, template in known if value is not None]


def sparkline(values: Sequence[float], width: int, top: float | None = None) -> str:
    """Return at most `width` block characters, oldest first, from 0 to `top` (default: the largest value).

    More values than characters: each character is the mean of its share of them.
    """
    num_cells = min(width, len(values))
    edges = [round(i * len(values) / num_cells) for i in range(num_cells + 1)] if num_cells else []
    means = [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    scale = top if top is not None else max(means, default=0.0)
    if scale <= 0:
        return BARS[0] * num_cells
    shares = [max(0.0, min(1.0, mean / scale)) for mean in means]
    return "".join(BARS[min(len(BARS) - 1, int(share * len(BARS)))] for share in shares)


def progress_bar(done: int, total: int, width: int) -> str:
    """`width` characters, filled to done / total."""
    filled = max(0, min(width, width * done // total)) if total > 0 else 0
    return "━" * filled + "╌" * (width - filled)


def step_time(seconds: float) -> str:
    """A step's time: `0.42s`, `3.1s`, then as `duration`."""
    return f"{seconds:.{1 if seconds >= 1 else 2}f}s" if seconds < 9.95 else duration(seconds)


def time_percents(row: Mapping[str, Any]) -> dict[str, int]:
    """The phases of a step that took at least half a percent or so; all of them sum to 100. Empty if no phase
    was timed and all is `other`."""
    seconds = {name: number(row, f"time/{name}") or 0.0 for name in PHASES}
    percents = {name: percent for name, percent in whole_percents(seconds).items() if percent}
    return {} if set(percents) == {"other"} else percents


def apportion(percents: Mapping[str, int], width: int) -> dict[str, int]:
    """Cells of a bar of exactly `width`, by the percents, rounding at each running sum."""
    cells, total, used = {}, 0, 0
    for name, percent in percents.items():
        total += percent
        end = round(width * total / 100)
        cells[name], used = end - used, end
    return cells


def evaluation_lines(row: Mapping[str, Any]) -> list[str]:
    """One line per evaluation set of a row: `eval heldout  avg@4 0.29 [0.21, 0.38]  pass@4 41%`."""
    sets: dict[str, list[str]] = {}
    for name in row:
        found = re.fullmatch(r"eval/([^/]+)/(avg|pass)@(\d+)", name)
        value = number(row, name)
        if found is None or value is None:
            continue
        set_name, kind, k = found.groups()
        low, high = (number(row, f"eval/{set_name}/ci_{end}") for end in ("low", "high"))
        text = f"avg@{k} {value:.2f}" if kind == "avg" else f"pass@{k} {value:.0%}"
        if kind == "avg" and low is not None and high is not None:
            text += f" [{low:.2f}, {high:.2f}]"
        sets.setdefault(set_name, []).append(text)
    return [f"eval {name}  " + "  ".join(sorted(parts)) for name, parts in sets.items()]
