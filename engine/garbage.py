"""Python's garbage collector in a process that holds thousands of trajectories.

Every collection walks through the elements of all lists and tuples it looks at, and a trajectory is lists of
thousands of ids. Reference counts free almost everything here at once; the collector is for cycles alone.
"""

from __future__ import annotations

import gc

YOUNG = 50_000
"""Containers made and not freed between two collections; Python's own 700 are three trajectories' turns."""


def settle_garbage() -> None:
    """Once per process, behind start-up: what exists is never looked at again, the rest more rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
