"""The torch threads of one process in which an embedded engine decodes beside the learner.

Each of the two has a Python thread with its own torch threads: with all cores for both, twice as many threads
run as there are cores, and each waits for the others at the end of every operation.
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
        """Halve the engine's threads in the block. The engine applies a change before its next burst."""
        self._engine.submit(set_threads, max(1, self._total // 2))
        try:
            yield
        finally:
            self._engine.submit(set_threads, self._total)
