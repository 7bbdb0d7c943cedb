"""How long an engine of several replicas was at work, for the time budget of a step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class BusyClock:
    """Seconds in which a turn was asked for, and of them those in which one waited for room.

    Both count up to this moment, also within a turn. Invariant: 0 <= starved_s <= busy_s, and neither falls.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asking = self._starving = 0
        self._busy_s = self._starved_s = 0.0
        self._then = clock()

    @property
    def busy_s(self) -> float:
        self._settle()
        return self._busy_s

    @property
    def starved_s(self) -> float:
        self._settle()
        return self._starved_s

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """One turn, from its request to its answer."""
        self._settle()
        self._asking += 1
        try:
            yield
        finally:
            self._settle()
            self._asking -= 1

    @contextlib.contextmanager
    def starving(self) -> Iterator[None]:
        """One turn, inside `asking`, while no replica has room for it."""
        self._settle()
        self._starving += 1
        try:
            yield
        finally:
            self._settle()
            self._starving -= 1

    def _settle(self) -> None:
        now = self._clock()
        if self._asking:
            self._busy_s += now - self._then
            self._starved_s += now - self._then if self._starving else 0.0
        self._then = now
