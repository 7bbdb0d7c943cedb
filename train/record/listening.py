"""Make the listeners of a run: its trackers, the classes of run.callbacks, and callbacks given from Python.

Callbacks are made by the checks of a run (plan/preflight.py), before anything is built.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.record.callbacks import Callback, How, Listeners, RunStart
from rocstar.train.record.trackers import make_tracker


@contextlib.contextmanager
def listening(
    recipe: Recipe, run_dir: Path, console: Callback, callbacks: Sequence[Callback] = (), *, step: int
) -> Iterator[Listeners]:
    """Yield the listeners of a run after reporting its start, and report its end.

    Args:
        recipe: names the trackers.
        run_dir: the run's folder.
        console: listens first.
        callbacks: listen last, those of the recipe included.
        step: RL steps that are done.

    Raises:
        ConfigError: one of them cannot be made, or failed at the start.
    """
    listeners = Listeners(console)
    how: How = "failed"
    try:
        for name in recipe.run.trackers:
            listeners.add(make_tracker(name, run_dir=run_dir, config=recipe.model_dump()))
        for callback in callbacks:
            listeners.add(callback)
        total = sum(stage.steps for stage in recipe.stages)
        copy = recipe.model_copy(deep=True)
        listeners.start(RunStart(recipe=copy, directory=run_dir, total_steps=total, step=step))
        yield listeners
        how = "stopped" if listeners.stop is not None else "complete"
    except TrainingStopped:
        how = "stopped"
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        how = "interrupted"
        raise
    finally:
        listeners.end(how)
