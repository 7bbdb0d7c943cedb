"""Listeners of a run: the console, trackers, and the user's callback classes.

    loop, cold start, evaluation -> Listeners -> the console
                                              -> run.trackers, run.callbacks, callbacks given from Python

An event is written to metrics.jsonl, records or checkpoints before it is reported. Listeners are called one
after the other in the thread of the event loop, and the run waits for them.

Invariant: a listener changes a run only by `StopRun`. A listener that raises anything else is reported once,
with its traceback, and removed; the console is ours, and its errors are bugs.
"""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from rocstar.engine.record.json_record import Verdict
from rocstar.engine.types import Trajectory
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.metrics import Row

How = Literal["complete", "stopped", "interrupted", "failed"]


class StopRun(Exception):
    """Raised by a callback: the run ends after this step as it would after its last, and can be resumed.

    Its message is the reason that people read.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """The facts of a run at its start and at each resume."""

    recipe: Recipe
    """A copy of the resolved recipe."""
    directory: Path
    total_steps: int
    """RL steps of all stages."""
    step: int
    """RL steps that are done: 0, or where a resumed run goes on."""


class Callback:
    """A listener. Override the methods you need; their arguments are read-only.

    A resumed run reports again the steps after its last checkpoint.
    """

    def on_run_start(self, run: RunStart) -> None:
        """Hear that a run begins. Raising here ends it with exit code 2, before anything is built."""

    def on_cold_start(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Hear of an update of the cold start: the `step`-th of `total`, with its loss and gradient norm."""

    def on_groups(self, step: int, judged: Sequence[tuple[Trajectory, Verdict]]) -> None:
        """Hear of all trajectories of an RL step, each with its verdict: bucket, penalties, advantage."""

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Hear of an RL step, as its row of metrics.jsonl: step, stage, phase, time_s and metrics by name.

        A value that was not finite is None.
        """

    def on_evaluation(self, row: Mapping[str, Any]) -> None:
        """Hear of an evaluation, as its row; `stage` is "eval", that of a difficulty filter, or "sft"
        for the measure after the cold start."""

    def on_checkpoint(self, step: int, directory: Path) -> None:
        """Hear that the checkpoint of a step is whole: a Hugging Face directory, until it is pruned."""

    def on_note(self, text: str) -> None:
        """Called with each console note besides steps: servers, a paused optimizer, a stall."""

    def on_end(self, how: How) -> None:
        """Hear how the run ended; nothing is heard afterwards. "stopped" is a callback's or the run's own."""


class Listeners:
    """All listeners of a run."""

    def __init__(self, console: Callback) -> None:
        self._console = console
        self._others: list[Callback] = []
        self.stop: str | None = None
        """Why the run is to end after this step; None while it is not."""

    def add(self, listener: Callback) -> None:
        """Add a listener."""
        self._others.append(listener)

    def start(self, run: RunStart) -> None:
        """Report the start of the run.

        Raises:
            ConfigError: a listener raised.
        """
        for listener in self._others:
            try:
                listener.on_run_start(run)
            except Exception as error:  # user code; the run has not started
                why = f"{type(error).__name__}: {error}"
                raise ConfigError(f"{_name(listener)}: on_run_start failed: {why}") from error

    def cold_start(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Report an update of the cold start."""
        self._tell("on_cold_start", step, total, MappingProxyType(dict(metrics)))

    def groups(self, step: int, judged: Sequence[tuple[Trajectory, Verdict]]) -> None:
        """Report the trajectories of a step."""
        self._tell("on_groups", step, tuple(judged))

    def row(self, row: Row) -> None:
        """Report a written row: a step or an evaluation."""
        self._tell("on_evaluation" if row["phase"] == "eval" else "on_step", MappingProxyType(row))

    def checkpoint(self, step: int, directory: Path) -> None:
        """Report a complete checkpoint."""
        self._tell("on_checkpoint", step, directory)

    def note(self, text: str) -> None:
        """Report a note for people."""
        self._tell("on_note", text)

    def end(self, how: How) -> None:
        """Report the end of the run and remove all listeners."""
        self._tell("on_end", how)
        self._others.clear()

    def _tell(self, event: str, *arguments: object) -> None:
        getattr(self._console, event)(*arguments)
        for listener in list(self._others):
            try:
                getattr(listener, event)(*arguments)
            except StopRun as stop:
                if self.stop is None:
                    self.stop = f"{_name(listener)}: {stop}"
            except Exception as error:  # user code: a failing listener must not end the run
                self._others.remove(listener)
                trace = "".join(traceback.format_exception(error)).rstrip()
                self._console.on_note(f"{_name(listener)}.{event} failed and hears nothing more of this run:\n{trace}")


def _name(listener: Callback) -> str:
    return type(listener).__name__
