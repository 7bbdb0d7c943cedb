"""Sums by task, from which all estimates are made, and the most uncertain tokens of a trajectory.

Legend: N tokens of a trajectory that the policy wrote, M tasks, C classes, L leads, W offsets, Q quantities.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TOP_SHARE: Final = 0.2


def top_membership(entropy_N: Floats, share: float = TOP_SHARE) -> Floats:
    """Return the membership of each token in the `share` of highest entropy: 1, 0, or a part. ValueError for
    NaN.

    The sum is share * N. Tokens that are equal at the edge have equal parts of the remainder, independent of
    their order.
    """
    if np.isnan(entropy_N).any():
        raise ValueError("an entropy is not a number")
    room = share * len(entropy_N)
    if not len(entropy_N):
        return np.zeros(0)
    edge = np.sort(entropy_N)[::-1][max(0, int(np.ceil(room - 1e-9)) - 1)]
    above_N, equal_N = entropy_N > edge, entropy_N == edge
    member_N: Floats = above_N + equal_N * (room - above_N.sum()) / equal_N.sum()
    return member_N


Ints = NDArray[Any]


class Lead(IntEnum):
    """The input that a turn of the policy answers."""

    asked = 0
    """A question: there is no tool result directly before it."""
    ok = 1
    """Tool results without an error."""
    error = 2
    """Tool results with at least one error."""


class Quantity(IntEnum):
    """The summed quantities."""

    tokens = 0
    top = 1
    """The membership in the top fifth of the trajectory."""
    entropy = 2
    """Nats."""


NUM_OFFSETS: Final = 64
"""Offsets from the start of a turn with separate sums."""


class Tally:
    """Sums over trajectories by task.

    Invariant: every token is counted once in `by_class`, and once in `by_offset` if its offset from the start
    of its turn is below NUM_OFFSETS.
    """

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._rows: dict[str, int] = {}
        self._by_class: list[Floats] = []
        self._by_offset: list[Floats] = []
        self.num_trajectories = 0

    @property
    def num_tasks(self) -> int:
        return len(self._rows)

    @property
    def by_class(self) -> Floats:
        """Sums (Q, M, C)."""
        return np.stack(self._by_class, axis=1)

    @property
    def by_offset(self) -> Floats:
        """Sums (Q, M, L, W)."""
        return np.stack(self._by_offset, axis=1)

    def add(self, task: str, entropy_N: Floats, class_N: Ints, lead_N: Ints, offset_N: Ints) -> Floats:
        """Count a trajectory, and return its tokens' membership in the top fifth."""
        top_N = top_membership(entropy_N)
        if task not in self._rows:
            self._rows[task] = len(self._rows)
            self._by_class.append(np.zeros((len(Quantity), self._num_classes)))
            self._by_offset.append(np.zeros((len(Quantity), len(Lead), NUM_OFFSETS)))
        row = self._rows[task]
        is_near_N = offset_N < NUM_OFFSETS
        near = lead_N[is_near_N], offset_N[is_near_N]
        for quantity, value_N in zip(Quantity, (np.ones_like(top_N), top_N, entropy_N), strict=True):
            np.add.at(self._by_class[row][quantity], class_N, value_N)
            np.add.at(self._by_offset[row][quantity], near, value_N[is_near_N])
        self.num_trajectories += 1
        return top_N
