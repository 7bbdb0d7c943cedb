"""What a training run holds from its first step to its last."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rocstar.engine.rollout import Agent
from rocstar.engine.types import Task
from rocstar.train.config import Recipe
from rocstar.train.console import Console
from rocstar.train.metrics import MetricsWriter
from rocstar.train.team import LearnerTeam
from rocstar.train.time_budget import TimeBudget
from rocstar.train.trackers import Tracker


class Publisher(Protocol):
    """Where the learner's weights go after an update."""

    @property
    def version(self) -> int:
        """Of the weights that are served now; 0 before the first update."""
        ...

    def updating(self) -> AbstractAsyncContextManager[None]:
        """Entered before a batch is learned, left after it is published: nobody sees weights in between."""
        ...

    async def publish(self, version: int) -> None:
        """Serve the learner's present weights as `version`. ValueError unless it is above the one now."""
        ...


Measure = Callable[[], dict[str, float]]
"""Metrics of an engine for the step that ends now."""


def nothing_measured() -> dict[str, float]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What a run needs to roll out. A run that learns from records has none."""

    agent: Agent
    heldout: list[Task]
    measure: Measure = nothing_measured


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything a training run holds. Built in main.py; changed by loop.py and stages.py only."""

    recipe: Recipe
    directory: Path
    live: Live | None
    publisher: Publisher
    team: LearnerTeam
    decode: Callable[[tuple[int, ...]], str]
    """Text of token ids, for records and for people."""
    metrics: MetricsWriter
    console: Console
    trackers: list[Tracker]
    budget: TimeBudget
    step: int = 0
    """RL steps done."""
    dropped_tasks: list[str] = field(default_factory=list)
    """Ids the difficulty filters removed so far."""
    bad_steps: int = 0
    """Steps in a row whose mismatch was beyond the off-policy gate's bounds."""

    def log(self, metrics: dict[str, float], *, stage: str, phase: Any) -> None:
        """One row everywhere it is looked at."""
        row = self.metrics.write(metrics, step=self.step, stage=stage, phase=phase)
        self.console.step(row)
        for tracker in self.trackers:
            tracker.log(self.step, metrics)
