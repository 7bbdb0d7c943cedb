"""Optional metric trackers, in addition to metrics.jsonl.

A tracker's package is imported when the tracker is made, so that training does not need it.
"""

import importlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.callbacks import Callback, How
from rocstar.train.record.metrics import ROW_KEYS

PROJECT = "rocstar"


class Tracker(Callback):
    """Takes the metrics of one step after another; subclasses send pending ones at the end."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """ConfigError if the package of the tracker is not installed. The folder's name is the run's name."""
        raise NotImplementedError

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Send the metrics of a step."""
        self.log(row["step"], {name: value for name, value in row.items() if name not in ROW_KEYS})

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Send the metrics of an evaluation."""
        self.on_step(row)

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Send the metrics of a step. Values that are None or not finite are left out."""
        raise NotImplementedError


class TensorBoardTracker(Tracker):
    """Event files under the run directory, read by `tensorboard --logdir`."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        module = _package("torch.utils.tensorboard", extra="tensorboard")
        self._writer = module.SummaryWriter(log_dir=str(run_dir / "logs" / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        for name, value in _finite(metrics).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def on_end(self, how: How) -> None:
        self._writer.close()


class WandbTracker(Tracker):
    """Weights & Biases. Offline unless the user asked otherwise: a run must not stop to ask for an account.

    `WANDB_MODE` decides; without it, an API key in `WANDB_API_KEY` means online.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        module = _package("wandb", extra="wandb")
        default = "online" if os.environ.get("WANDB_API_KEY") else "offline"
        self._run = module.init(
            project=PROJECT,
            name=run_dir.name,
            dir=str(run_dir / "logs"),
            config=dict(config),
            mode=os.environ.get("WANDB_MODE", default),
        )
        # W&B's own step may only grow, but a resumed run repeats steps: the step is a metric like others.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._run.log({"step": step, **_finite(metrics)})

    def on_end(self, how: How) -> None:
        self._run.finish()


class TrackioTracker(Tracker):
    """Trackio: a local dashboard without an account."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._module = _package("trackio", extra="trackio")
        self._module.init(project=PROJECT, name=run_dir.name, config=dict(config), resume="allow")

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._module.log(_finite(metrics), step=step)

    def on_end(self, how: How) -> None:
        self._module.finish()


TRACKERS: Mapping[str, type[Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
}


def make_tracker(name: str, *, run_dir: Path, config: Mapping[str, Any]) -> Tracker:
    """Return the tracker of this name for a run. ConfigError if there is none, or no package for it."""
    if name not in TRACKERS:
        raise ConfigError(f"run.trackers: unknown tracker {name!r}; the trackers are {', '.join(TRACKERS)}")
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    return TRACKERS[name](run_dir, config)


def _package(module: str, *, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"run.trackers: tracker {extra!r} needs a package that is not installed ({error}); "
            f"install it with: pip install {extra}"
        ) from error


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
