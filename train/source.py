"""Where the groups of a step come from. What is done with them is loop.py's and the same for all.

    LiveGroups      cursor -> run_groups, all groups of the step at once (staleness 0)
    AheadGroups     groups that were rolled out while the learner worked (ahead.py)
    RecordedGroups  trajectory records (from_rollouts.py)

Who waits: `take` waits for the step's last group. With LiveGroups nothing is rolled out while the learner
works.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocstar.engine.group import run_groups
from rocstar.engine.rollout import Agent
from rocstar.engine.types import Group, Task
from rocstar.train.config import RlConfig, StageConfig
from rocstar.train.data import TaskCursor
from rocstar.train.idle import Idle
from rocstar.train.time_budget import TimeBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The groups of one step."""

    groups: list[Group]
    staleness: int | None
    """The learner's version less the oldest that wrote a token; None where another run counted them."""


class Source(Protocol):
    """A stage's supply of batches.

    Invariant: a source opened with the `state` of another gives the batches that the other would have given
    next.
    """

    async def take(self, step: int) -> Batch:
        """The batch of step `step`; called once per step, in order."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON: what a checkpoint keeps of it between two steps."""
        ...


OpenSource = Callable[
    [StageConfig, Sequence[Task], dict[str, Any] | None], AbstractAsyncContextManager[Source]
]
"""Opens the source of a stage on its tasks, where `state` stood if there is one; leaving it ends its work."""


class Engine(Protocol):
    """What timing and staleness need to know of an engine."""

    version: int
    busy_s: float
    starved_s: float
    """See `idle.Decoder`."""


@dataclass(slots=True, kw_only=True)
class LiveGroups:
    """Rolls out the step's groups when they are asked for."""

    agent: Agent
    engine: Engine
    cursor: TaskCursor
    rl: RlConfig
    seed: int
    budget: TimeBudget
    clock: Callable[[], float] = time.perf_counter
    _idle: Idle = field(init=False)

    def __post_init__(self) -> None:
        self._idle = Idle(self.engine, clock=self.clock)
        self.agent = self._idle.watching(self.agent)

    async def take(self, step: int) -> Batch:
        # An epoch may end inside a batch: a task then comes once, for two attempts would be the same attempt.
        tasks = list({task.id: task for task in self.cursor.take(self.rl.tasks_per_step)}.values())
        size, seed, num = self.rl.rollouts_per_task, self.seed, len(tasks)
        with self._idle.divided(self.budget):
            running = run_groups(self.agent, tasks, size=size, seed=seed, step=step, max_groups=num)
            groups = [group async for group in running]
        return Batch(groups=groups, staleness=staleness(groups, self.engine.version))

    def state(self) -> dict[str, Any]:
        return self.cursor.state()


def staleness(groups: Sequence[Group], version: int) -> int:
    """`version` less the oldest version that wrote a token of the groups; 0 where none did."""
    oldest = min(
        (span.version for group in groups for t in group.trajectories for span in t.version_spans),
        default=version,
    )
    assert oldest <= version, f"tokens of version {oldest} are newer than the learner's {version}"
    return version - oldest


def agent_for(agent: Agent, stage: StageConfig) -> Agent:
    """The agent under a stage's limits."""
    limits = dataclasses.replace(
        agent.limits, max_response_tokens=stage.max_response_tokens, max_turns=stage.max_turns
    )
    return dataclasses.replace(agent, limits=limits)
