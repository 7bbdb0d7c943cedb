"""Signs that a trajectory went wrong, from the trajectory alone. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rocstar.engine.types import GRADER_LIMIT, REWARD_TIMEOUT, Failed, Ids, Trajectory

GRAM: Final = 8
LEAST_GRAMS: Final = 16
"""A turn of fewer 8-grams is too short to be called a loop."""
MAX_TURN_TOKENS: Final = 8192
LOOPING: Final = 0.5
_MIX: Final = np.array([0x9E3779B97F4A7C15 * (2 * k + 1) ** 3 % 2**64 for k in range(GRAM)], dtype=np.uint64)


def is_timed_out(trajectory: Trajectory) -> bool:
    """Whether its judge did not finish."""
    outcome = trajectory.outcome
    if isinstance(outcome, Failed):
        return outcome.kind == REWARD_TIMEOUT
    return outcome.method == GRADER_LIMIT


def is_looping(trajectory: Trajectory) -> bool:
    """Whether in one of its turns most 8-grams of tokens were there before."""
    return any(
        repeated_share(trajectory.ids[turn.start : turn.end][-MAX_TURN_TOKENS:]) > LOOPING for turn in trajectory.turns
    )


def repeated_share(ids: Ids) -> float:
    """Share of the 8-grams of some ids that occurred before in them; 0 of fewer than LEAST_GRAMS."""
    count = len(ids) - GRAM + 1
    if count < LEAST_GRAMS:
        return 0.0
    windows = sliding_window_view(ids.astype(np.uint64) + np.uint64(1), GRAM)
    grams = (windows * _MIX).sum(axis=1, dtype=np.uint64)
    return 1.0 - len(np.unique(grams)) / count
