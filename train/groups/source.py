"""The sources of a step's groups. loop.py treats all of them alike.

    LiveGroups      cursor -> Roller.roll_out, all groups of the step at once (staleness 0)
    AheadGroups     groups rolled out while the learner works (ahead.py)
    Records         trajectory records (from_rollouts.py)

`take` waits for the step's last group. With LiveGroups nothing is rolled out while the learner works.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rocstar.engine.inference.base import EngineTimes
from rocstar.engine.nodes.node import GroupOrder
from rocstar.engine.progress.progress import Attempts, working
from rocstar.engine.rollout.forks import ForkRule
from rocstar.engine.rollout.group import Unneeded, all_groups, run_group
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Group, Task, Trajectory
from rocstar.train.groups.fork_rule import fork_rule
from rocstar.train.groups.journal import Journal
from rocstar.train.groups.selection import num_missing, unneeded_siblings
from rocstar.train.groups.waiting_times import WaitingTimes
from rocstar.train.recipe.errors import TrainingStopped
from rocstar.train.recipe.rl_config import RlConfig, StageConfig
from rocstar.train.record.time_budget import TimeBudget

if TYPE_CHECKING:
    from rocstar.engine.nodes.nodes import Nodes
    from rocstar.train.groups.task_cursor import TaskCursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The groups of one step."""

    groups: list[Group]
    staleness: int | None
    """The learner's version less the oldest that wrote a token; None where another run counted them."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the nodes that rolled out, where there are several, and of the refill."""


class Source(Protocol):
    """A stage's supply of batches.

    Invariant: a source opened with the `state` of another gives the batches that the other would have given
    next.
    """

    async def take(self, step: int) -> Batch:
        """The batch of step `step`; called once per step, in order."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON: its state in a checkpoint between two steps."""
        ...


OpenSource = Callable[[StageConfig, Sequence[Task], dict[str, Any] | None], AbstractAsyncContextManager[Source]]
"""Opens the source of a stage on its tasks, where `state` stood if there is one; leaving it ends its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roller:
    """Rolls out siblings of a task with `agent`, in this process or on whichever of `nodes` has room."""

    agent: Agent
    nodes: Nodes | None = None
    whole_groups: bool = False
    """A group alone shares a forward: it is rolled out again as a whole, or its bits change."""
    ended: Callable[[Trajectory], Awaitable[None]] | None = None
    """Takes each trajectory that ends in this process, before its group ends."""
    journal: Journal | None = None
    """Has groups of an earlier process, and takes each group that ends."""
    engine: EngineTimes | None = None
    """Of `agent`; needed with a journal."""
    forks: ForkRule | None = None
    """The rule of siblings that this process rolls out."""
    unneeded: Unneeded | None = None
    """As of `run_group`, for whole groups of this process."""

    async def found(self, task: Task, *, size: int, step: int) -> Group | None:
        """Return the journal's group of a task; None if it has none that this process may take."""
        if self.journal is None:
            return None
        group = await self.journal.found(step, task, size=size)
        return group if group is not None and self.may_take([group]) else None

    def may_take(self, groups: Sequence[Group]) -> bool:
        """Return False if a token is of newer weights: a resumed process may have learned less until now."""
        assert self.engine is not None, "a journal's groups are compared with the engine's version"
        return max(versions_of(groups), default=0) <= self.engine.version

    async def roll_out(
        self, task: Task, *, size: int, seed: int, step: int, first: int = 0, again: bool = False
    ) -> Group:
        """Return `size` siblings of a task, from number `first` on: the journal's, or new ones.

        again: do not look into the journal.
        """
        if not again and (found := await self.found(task, size=size, step=step)) is not None:
            return found
        if self.nodes is None and self.ended is None:
            run = partial(run_group, forks=self.forks, unneeded=self.unneeded)
            try:
                group = await run(self.agent, task, size=size, seed=seed, step=step, first=first)
            except ExceptionGroup as failures:
                stopped = failures.subgroup(TrainingStopped)
                raise (failures if stopped is None else stopped.exceptions[0]) from None  # one says why
        else:
            order = GroupOrder(
                task=task,
                step=step,
                seed=seed,
                size=size,
                first=first,
                limits=self.agent.limits,
                temperature=self.agent.sampling.temperature,
            )
            nodes, run_here = self.nodes, self._run_here
            group = await (run_here(order) if nodes is None else nodes.roll_out(order, run_here))
        if self.journal is not None:
            await self.journal.ended(step, group)
        return group

    async def _run_here(self, order: GroupOrder) -> Group:
        """Roll out siblings in this process; each is given to `ended` when it ends."""
        run = partial(run_group, self.agent, order.task, seed=order.seed, step=order.step)
        if (ended := self.ended) is None:
            return await run(size=order.size, first=order.first)

        async def run_one(sibling: int) -> Trajectory:
            (trajectory,) = (await run(size=1, first=sibling)).trajectories
            await ended(trajectory)
            return trajectory

        numbers = range(order.first, order.first + order.size)
        try:
            async with asyncio.TaskGroup() as siblings:
                running = [siblings.create_task(run_one(number)) for number in numbers]
        except ExceptionGroup as failures:  # a full disk ends several; one says why
            raise failures.exceptions[0] from None
        return Group(task=order.task, trajectories=tuple(sibling.result() for sibling in running))


@dataclass(slots=True, kw_only=True)
class LiveGroups:
    """Rolls out the step's groups when they are asked for; those that a journal has are there already.

    If groups have no signal, up to `rl.refill` rounds follow, each of as many tasks as groups are missing.
    `take` waits for all groups of a round: to take the first that end would prefer short answers.

    With `wave`, so many groups at a time: what shares a forward decides the last bits, so that a group of
    which the others are lost is rolled out again with them.
    """

    agent: Agent
    engine: EngineTimes
    cursor: TaskCursor
    rl: RlConfig
    seed: int
    budget: TimeBudget
    nodes: Nodes | None = None
    journal: Journal | None = None
    wave: int | None = None
    clock: Callable[[], float] = time.perf_counter
    _waits: WaitingTimes = field(init=False)
    _roller: Roller = field(init=False)

    def __post_init__(self) -> None:
        self._waits = WaitingTimes(self.engine, clock=self.clock)
        agent = self._waits.watching(self.agent)
        self._roller = Roller(
            agent=agent,
            nodes=self.nodes,
            journal=self.journal,
            engine=self.engine,
            forks=fork_rule(self.rl),
            unneeded=unneeded_of(self.rl, self.seed),
        )

    async def take(self, step: int) -> Batch:
        groups = await self._round(step, self.rl.tasks_per_step, [])
        wanted = len(groups)
        for _ in range(self.rl.refill):
            if missing := num_missing(groups, self.rl, wanted=wanted):
                groups += await self._round(step, missing, groups)
        metrics = counts(self.rl, len(groups) - wanted, self.nodes) | self.cursor.observe(groups)
        return Batch(groups=groups, staleness=staleness(groups, self.engine.version), metrics=metrics)

    def state(self) -> dict[str, Any]:
        return self.cursor.state()

    async def _round(self, step: int, count: int, former: Sequence[Group]) -> list[Group]:
        """Return the groups of the next `count` tasks; the step has the groups `former` already."""
        # An epoch may end in a step: a task then comes once, for two attempts would be the same attempt.
        seen, size = {group.task.id for group in former}, self.rl.rollouts_per_task
        tasks = list({task.id: task for task in self.cursor.take(count) if task.id not in seen}.values())
        attempts, groups = Attempts(total=len(tasks) * size), list[Group]()
        with (
            self._waits.divided(self.budget),
            working(work_name(step, former), unit="groups", total=len(tasks), attempts=attempts) as work,
        ):

            def ended() -> None:
                work.done += 1

            together = self.wave or max(1, len(tasks))
            for at in range(0, len(tasks), together):
                wave, found = tasks[at : at + together], list[Group | None]()
                if self.wave is not None:
                    # All of them or none, and looked for beforehand: they begin in one moment.
                    found = [await self._roller.found(task, size=size, step=step) for task in wave]
                known = [group for group in found if group is not None]
                if len(known) < len(wave):
                    roll_out = partial(
                        self._roller.roll_out, size=size, seed=self.seed, step=step, again=self.wave is not None
                    )
                    groups += await all_groups(roll_out, wave, ended)
                else:
                    work.done += len(known)
                    groups += known
        return groups


def unneeded_of(rl: RlConfig, seed: int) -> Unneeded | None:
    """Return which siblings end early; None if the recipe has none that do."""
    return partial(unneeded_siblings, config=rl, seed=seed) if rl.end_early else None


def work_name(step: int, former: Sequence[Group]) -> str:
    """Return the name under which progress shows the wait for groups of a step that has `former` already."""
    return f"step {step}, refill" if former else f"step {step}"


def counts(rl: RlConfig, num_refilled: int, nodes: Nodes | None) -> dict[str, float]:
    """Return the metrics of a batch: those of several nodes, and of the refill if the recipe has one."""
    refilled = {"groups/refilled": float(num_refilled)} if rl.refill else {}
    return (nodes.counts() if nodes else {}) | refilled


def versions_of(groups: Sequence[Group]) -> list[int]:
    """Return the versions that wrote tokens of the groups."""
    return [span.version for group in groups for t in group.trajectories for span in t.version_spans]


def staleness(groups: Sequence[Group], version: int) -> int:
    """`version` less the oldest version that wrote a token of the groups; 0 where none did."""
    oldest = min(versions_of(groups), default=version)
    assert oldest <= version, f"tokens of version {oldest} are newer than the learner's {version}"
    return version - oldest


def agent_for(agent: Agent, stage: StageConfig) -> Agent:
    """The agent under a stage's limits."""
    limits = dataclasses.replace(
        agent.limits, max_response_tokens=stage.max_response_tokens, max_turns=stage.max_turns
    )
    return dataclasses.replace(agent, limits=limits)
