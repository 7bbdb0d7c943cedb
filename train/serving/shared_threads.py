"""The torch threads of one process in which an embedded engine decodes beside the learner.

Each of the two has a thread of Python, which brings as many torch threads as it is told: with all cores for
both, twice as many run as there are cores, and each waits for its fellows at the end of every operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from rocstar.train.learner.checkpoint import set_threads


class SharedThreads:
    """The engine has all of them while the learner waits, and half of them while it learns."""

    def __init__(self, engine: ThreadPoolExecutor, total: int) -> None:
        """`engine` runs one thread of Python, which has `total` torch threads now."""
        self._engine, self._total = engine, total

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """The learner's work. The engine follows at its next burst; nobody waits."""
        self._engine.submit(set_threads, max(1, self._total // 2))
        try:
            yield
        finally:
            self._engine.submit(set_threads, self._total)
