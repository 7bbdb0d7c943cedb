"""Optional metric trackers, in addition to metrics.jsonl.

A tracker's package is imported when the tracker is made, so that training does not need it.
"""

import asyncio
import contextlib
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.sandbox.extras import pip_command
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.record.callbacks import Callback, How, Listeners, RunStart
from rocstar.train.record.metrics import ROW_KEYS


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


PROJECT = "rocstar"


class TensorBoardTracker(Callback):
    """Event files under the run directory, read by `tensorboard --logdir`."""

    def __init__(self, module: Any, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._writer = module.SummaryWriter(log_dir=str(run_dir / "logs" / "tensorboard"))

    def on_step(self, row: Mapping[str, Any]) -> None:
        for name, value in _metrics(row).items():
            self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    on_evaluation = on_step

    def on_end(self, how: How) -> None:
        self._writer.close()


class WandbTracker(Callback):
    """Weights & Biases. Offline unless the user asked otherwise: a run must not stop to ask for an account.

    `WANDB_MODE` decides; without it, an API key in `WANDB_API_KEY` means online.
    """

    def __init__(self, module: Any, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._run = module.init(
            project=PROJECT, name=run_dir.name, dir=str(run_dir / "logs"), config=dict(config), mode=_wandb_mode()
        )
        # W&B's own step may only grow, but a resumed run repeats steps: the step is a metric like others.
        self._run.define_metric("*", step_metric="step")

    def on_step(self, row: Mapping[str, Any]) -> None:
        self._run.log({"step": row["step"], **_metrics(row)})

    on_evaluation = on_step

    def on_end(self, how: How) -> None:
        self._run.finish()


class TrackioTracker(Callback):
    """Trackio: a local dashboard without an account."""

    def __init__(self, module: Any, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._module = module
        module.init(project=PROJECT, name=run_dir.name, config=dict(config), resume="allow")

    def on_step(self, row: Mapping[str, Any]) -> None:
        self._module.log(_metrics(row), step=row["step"])

    on_evaluation = on_step

    def on_end(self, how: How) -> None:
        self._module.finish()


TRACKERS: Mapping[str, Callable[[Any, Path, Mapping[str, Any]], Callback]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
}
"""Each takes its module, the run's folder, whose name is the run's, and the recipe."""


def check_tracker(name: str) -> list[str]:
    """Return the facts that only the start shows. ConfigError if the tracker's package is not installed."""
    _package(name)
    is_online = name == "wandb" and _wandb_mode() == "online"
    return ["run.trackers = 'wandb': its server, which is asked when the run starts"] if is_online else []


def make_tracker(name: str, *, run_dir: Path, config: Mapping[str, Any]) -> Callback:
    """Return the tracker of this name for a run. ConfigError if its package is not installed."""
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    return TRACKERS[name](_package(name), run_dir, config)


def _wandb_mode() -> str:
    return os.environ.get("WANDB_MODE", "online" if os.environ.get("WANDB_API_KEY") else "offline")


def _package(name: str) -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard" if name == "tensorboard" else name)
    except ImportError as error:
        raise ConfigError(
            f"run.trackers: tracker {name!r} needs a package that is not installed ({error}); "
            f"install it with: {pip_command(name)}"
        ) from error


def _metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite metrics of a row of metrics.jsonl by name."""
    found = {name: value for name, value in row.items() if name not in ROW_KEYS and value is not None}
    return {name: value for name, value in found.items() if math.isfinite(value)}
