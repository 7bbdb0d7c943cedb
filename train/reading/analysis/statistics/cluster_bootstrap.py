"""Intervals over tasks: whole tasks are drawn with replacement, for the trajectories of one are alike.

The limits are percentiles of the draws, a little farther out than nominal: at the tails that Student's t with
m - 1 degrees of freedom has beyond the normal quantile, times sqrt(m / (m - 1)). Plain percentiles of a mean
of m clusters are too narrow by these two factors (Hesterberg 2014, arXiv 1411.5279).

Legend: B draws, M tasks, K columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

NUM_DRAWS: Final = 4000
LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapEstimate:
    """A number with its interval at 95%, and how much it rests on."""

    value: float
    """NaN where there is nothing to make it of."""
    low: float
    high: float
    num_tasks: int
    num_tokens: int

    def lies_beyond(self, null: float) -> int:
        """1 where the whole interval is above `null`, -1 where it is below, else 0."""
        return int(self.low > null) - int(self.high < null)


class TaskDraws:
    """B draws of M tasks with replacement: how often each task is in each of them."""

    def __init__(self, num_tasks: int, rng: np.random.Generator, num_draws: int = NUM_DRAWS) -> None:
        """ValueError without a task."""
        if num_tasks < 1:
            raise ValueError("no task was drawn")
        even = np.full(num_tasks, 1 / num_tasks)
        self._times_BM: Floats = rng.multinomial(num_tasks, even, num_draws).astype(float)

    def sums(self, rows_MK: Floats) -> Floats:
        """The sum over the tasks of each draw, (B, K)."""
        sums_BK: Floats = self._times_BM @ rows_MK
        return sums_BK


def interval(values_B: Floats, num_tasks: int, level: float = LEVEL) -> tuple[float, float]:
    """Limits from what each draw gave. A draw that gave no number (NaN) counts as beyond either limit, and
    one task tells nothing of others: both give a limit that is infinite."""
    if num_tasks < 2:
        return -math.inf, math.inf
    quantile = float(special.stdtrit(num_tasks - 1, (1 + level) / 2))
    tail = float(special.ndtr(-quantile * math.sqrt(num_tasks / (num_tasks - 1))))
    unknown_B = np.isnan(values_B)
    low = np.quantile(np.where(unknown_B, -np.inf, values_B), tail, method="lower")
    high = np.quantile(np.where(unknown_B, np.inf, values_B), 1 - tail, method="higher")
    return float(low), float(high)
