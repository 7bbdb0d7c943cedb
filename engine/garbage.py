"""Python's garbage collector in a process that holds thousands of trajectories.

Every collection walks through the elements of all lists and tuples it looks at, and a trajectory is lists of
thousands of ids. Reference counts free almost everything here at once; the collector is for cycles alone.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 50_000
"""Containers made and not freed between two collections; Python's own 700 are three trajectories' turns."""


@contextmanager
def settled_garbage() -> Iterator[None]:
    """Freeze the objects of start-up inside the block, and collect the rest more rarely.

    After the block the previous state is restored: otherwise cycles of a run would stay for ever in a process
    with several runs, a notebook. gc can only unfreeze all objects: if some were frozen before, the rest is
    frozen again after a collection.
    """
    thresholds, was_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *thresholds[1:])
    try:
        yield
    finally:
        gc.unfreeze()
        if was_frozen:
            gc.collect()
            gc.freeze()
        gc.set_threshold(*thresholds)
