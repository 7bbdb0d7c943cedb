"""The state of a training run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Task
from rocstar.train.groups.journal import Journal
from rocstar.train.groups.source import OpenSource
from rocstar.train.learner.batch import BodyMask
from rocstar.train.learner.checkpoint_writer import Order
from rocstar.train.learner.settings import EntropyControl
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.publish.publisher import Measure, Publisher
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.rl_config import StageConfig
from rocstar.train.record.callbacks import Listeners
from rocstar.train.record.learned_questions import Learned
from rocstar.train.record.metrics import MetricsWriter
from rocstar.train.record.time_budget import LoopLag, TimeBudget

if TYPE_CHECKING:
    from rocstar.engine.nodes.nodes import Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The rollout resources of a run. A run that learns from records has none."""

    agent: Agent
    heldout: Mapping[str, list[Task]]
    """Tasks of each evaluation set, by label."""
    learned: Learned = field(default_factory=Learned)
    """The evaluation questions that the recipe trains on."""
    measure: Measure = dict
    nodes: Nodes | None = None
    """Those that roll out, where there are several."""


class Evaluations(Protocol):
    """The module evaluation/during_training.py, which the loop reaches through the run."""

    async def run_evaluation(self, run: Run, *, between: bool = False) -> object: ...

    async def measure_cold_start(self, run: Run, stage: StageConfig, tasks: Sequence[Task]) -> None: ...

    async def filter_by_difficulty(self, run: Run, stage: StageConfig, tasks: Sequence[Task]) -> list[Task]: ...


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything a training run holds. Built in compose/; changed by the loop and during_training.py only."""

    recipe: Recipe
    directory: Path
    live: Live | None
    evaluation: Evaluations
    publisher: Publisher
    team: LearnerTeam
    decode: Callable[[Sequence[int]], str]
    """Text of token ids, for records and for people."""
    bodies: BodyMask
    """The tokens of results in a tool segment, for `rl.echo`."""
    metrics: MetricsWriter
    journal: Journal
    """The records."""
    listeners: Listeners
    budget: TimeBudget
    lag: LoopLag
    write_eval_page: Callable[[Path], object]
    """Writes report.html of an evaluation's folder."""
    open_source: OpenSource
    tasks: Sequence[Sequence[Task]]
    """The tasks of each stage."""
    saved: Path | None = None
    """The checkpoint to go on from."""
    step: int = 0
    """RL steps done."""
    dropped_tasks: list[str] = field(default_factory=list)
    """Ids the difficulty filters removed so far."""
    bad_steps: int = 0
    """Steps in a row whose mismatch was beyond the off-policy gate's bounds."""
    entropy: EntropyControl = EntropyControl()  # noqa: RUF009
    """The coefficient of the entropy term in the next step."""
    alarms: Callable[[int, Mapping[str, float]], Mapping[str, float]] = lambda step, metrics: {}
    """Returns the alarms' metrics of an RL step."""
    saving: Order | None = None
    """The checkpoint whose completion is not yet reported to the listeners."""

    def log(self, metrics: dict[str, float], *, stage: str, phase: Any) -> None:
        """Write one row, and report it to the listeners."""
        if phase == "rl":
            metrics = {**metrics, **self.alarms(self.step, metrics)}
        self.listeners.row(self.metrics.write(metrics, step=self.step, stage=stage, phase=phase))
