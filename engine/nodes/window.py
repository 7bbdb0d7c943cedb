"""How many groups of a long row of them are in flight at a time: enough for the engines, and no more.

Nothing is lost by waiting here, and nothing is gained by not waiting: an engine that is full holds back what
it is given. But every group in flight is memory of this process, and a row may be a hundred thousand long.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rocstar.engine.nodes.grants import FILL, Lengths
from rocstar.engine.types import Group


class Window:
    """The groups of `size` siblings that may be in flight.

    Invariant: at least one; otherwise as many as hold `trajectories()`, or, where only KV is known, those of
    which FILL times `kv_tokens()` is full by the mean length so far, which leans on `limit_tokens`.
    """

    def __init__(
        self,
        *,
        size: int,
        trajectories: Callable[[], int] | None = None,
        kv_tokens: Callable[[], int] = lambda: 0,
        limit_tokens: int = 1,
    ) -> None:
        self._size, self._limit_tokens = size, limit_tokens
        self._trajectories, self._kv_tokens = trajectories, kv_tokens
        self._lengths = Lengths()

    @property
    def most(self) -> int:
        """How many, now."""
        if self._trajectories is not None:
            return max(1, math.ceil(self._trajectories() / self._size))
        each = self._size * self._lengths.mean(self._limit_tokens)
        return max(1, math.ceil(FILL * self._kv_tokens() / each))

    def ended(self, group: Group) -> None:
        """One less, and its lengths are known."""
        self._lengths.add(self._limit_tokens, [len(t.ids) for t in group.trajectories])
