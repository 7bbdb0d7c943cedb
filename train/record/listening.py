"""Make the listeners of a run: its trackers, the classes of run.callbacks, and callbacks given from Python.

Classes are imported and their arguments checked before anything is built; instances are made at the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.own_code import described, load
from rocstar.train.recipe.run_config import CallbackConfig
from rocstar.train.record.callbacks import Callback, How, Listeners, RunStart
from rocstar.train.record.trackers import make_tracker


def callback_class(config: CallbackConfig, *, field: str) -> type[Callback]:
    """Return the class of a callback that takes the recipe's arguments.

    Raises:
        ConfigError: there is no such class, it is no Callback, or it does not take these arguments.
    """
    found = load(config.kind, field=field)
    said = f"{field} = {config.kind!r}"
    if not (isinstance(found, type) and issubclass(found, Callback)):
        raise ConfigError(
            f"{said}: it is no subclass of rocstar.train.record.callbacks.Callback; make it one"
        )
    try:
        inspect.signature(found).bind(**config.args)
    except TypeError as error:
        raise ConfigError(
            f"{said}: args = {config.args!r} do not fit {found.__name__}{inspect.signature(found)}: {error}"
        ) from None
    return found


def check_callbacks(configs: Sequence[CallbackConfig]) -> None:
    """Raise ConfigError for the first callback that cannot be created; create none."""
    for k, config in enumerate(configs):
        callback_class(config, field=f"run.callbacks.{k}.kind")


def make_callback(config: CallbackConfig, *, field: str) -> Callback:
    """Create a callback. ConfigError if that fails."""
    made = callback_class(config, field=field)
    try:
        return made(**config.args)
    except Exception as error:  # user code; the run has not started
        raise ConfigError(f"{field} = {config.kind!r}: it cannot be made: {described(error)}") from error


@contextlib.contextmanager
def listening(
    recipe: Recipe, run_dir: Path, console: Callback, callbacks: Sequence[Callback] = (), *, step: int
) -> Iterator[Listeners]:
    """Yield the listeners of a run after reporting its start, and report its end.

    Args:
        recipe: names trackers and callbacks.
        run_dir: the run's folder.
        console: listens first.
        callbacks: listen last.
        step: RL steps that are done.

    Raises:
        ConfigError: one of them cannot be made, or failed at the start.
    """
    listeners = Listeners(console)
    how: How = "failed"
    try:
        for name in recipe.run.trackers:
            listeners.add(make_tracker(name, run_dir=run_dir, config=recipe.model_dump()))
        for k, config in enumerate(recipe.run.callbacks):
            listeners.add(make_callback(config, field=f"run.callbacks.{k}.kind"))
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
