"""The tokens that running requests may still write: the sum of min(limit - produced, clip) over the batch.

Kept in pieces, so that it costs the logarithm of the batch and not the batch: requests further than `clip`
from their limit count `clip` each; for the others the sum of the steps at which they reach it is enough.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(slots=True)
class Reserve:
    """`end` of a request is the decode step at which it would reach its limit; keys name requests."""

    clip: int
    _ends: dict[int, int] = field(init=False, default_factory=dict)
    _far: list[tuple[int, int]] = field(init=False, default_factory=list)
    _near: dict[int, int] = field(init=False, default_factory=dict)
    _near_sum: int = field(init=False, default=0)

    def add(self, key: int, end: int) -> None:
        self._ends[key] = end
        heapq.heappush(self._far, (end, key))

    def remove(self, key: int) -> None:
        del self._ends[key]
        self._near_sum -= self._near.pop(key, 0)

    def total(self, step: int) -> int:
        """The sum at decode step `step`; steps never decrease."""
        far = self._far
        while far and far[0][0] - step <= self.clip:
            end, key = heapq.heappop(far)
            if self._ends.get(key) == end and key not in self._near:
                self._near[key] = end
                self._near_sum += end
        near = len(self._near)
        return (len(self._ends) - near) * self.clip + self._near_sum - near * step
