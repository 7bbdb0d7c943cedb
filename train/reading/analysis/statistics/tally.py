"""Which tokens of a trajectory are the most uncertain ones.

Legend: N tokens that the policy wrote.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TOP_SHARE: Final = 0.2


def top_membership(entropy_N: Floats, share: float = TOP_SHARE) -> Floats:
    """How much of each token lies among the `share` of highest entropy: 1, 0, or a part.

    It sums to share * N. Tokens that are equal at the edge have the rest of the room in equal parts, so that
    the order in which they were written gives none of them a place. ValueError for an entropy that is NaN.
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
    """What a turn of the policy answers."""

    asked = 0
    """A question: no tool has answered right before it."""
    ok = 1
    """Tool results, all of them good."""
    error = 2
    """Tool results, at least one of them an error."""


class Quantity(IntEnum):
    """What is summed over tokens."""

    tokens = 0
    top = 1
    """Their membership in the top fifth of their trajectory."""
    entropy = 2
    """Nats."""


NUM_OFFSETS: Final = 64
"""Offsets from the begin of a turn that are kept apart."""


class Tally:
    """Invariant: every token is counted once in `by_class`, and once in `by_offset` if its offset from the
    begin of its turn is below NUM_OFFSETS."""

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
        """Count one trajectory; its tokens' membership in the top fifth."""
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
