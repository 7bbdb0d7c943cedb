"""The sources of a step's groups. loop.py treats all of them alike.

    LiveGroups      cursor -> tickets -> roll_out, all groups of the step at once (staleness 0)
    AheadGroups     groups rolled out while the learner works (ahead.py)
    RecordedGroups  trajectory records (from_rollouts.py)

`roll_out` makes a ticket a group: in this process, or on whichever node has room (`roller`).

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
from typing import Any, Protocol

from rocstar.engine.inference.base import EngineTimes
from rocstar.engine.nodes.node import GroupOrder
from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.progress.progress import Attempts, Work, working
from rocstar.engine.rollout.feed import Ticket
from rocstar.engine.rollout.group import all_groups, run_group
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Group, Task, Trajectory
from rocstar.train.groups.journal import Journal
from rocstar.train.groups.selection import num_missing
from rocstar.train.groups.waiting_times import WaitingTimes
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.recipe.stage_config import StageConfig
from rocstar.train.record.time_budget import TimeBudget
from rocstar.train.tasks.data import TaskCursor


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


OpenSource = Callable[
    [StageConfig, Sequence[Task], dict[str, Any] | None], AbstractAsyncContextManager[Source]
]
"""Opens the source of a stage on its tasks, where `state` stood if there is one; leaving it ends its work."""


RollOut = Callable[[Ticket], Awaitable[Group]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roller:
    """Rolls out siblings with `agent`, in this process or on whichever of `nodes` has room."""

    agent: Agent
    nodes: Nodes | None = None
    whole_groups: bool = False
    """What shares a forward is a group and nothing else: it is made again as a whole, or its bits change."""
    ended: Callable[[Trajectory], Awaitable[None]] | None = None
    """Takes each trajectory that ends in this process, before its group ends."""

    async def roll_out(self, task: Task, *, size: int, seed: int, step: int, first: int = 0) -> Group:
        """`size` siblings of a task, from number `first` on; other nodes take the agent's limits."""
        if self.nodes is None:
            return await self._at_home(task, size=size, seed=seed, step=step, first=first)
        order = GroupOrder(
            task=task,
            step=step,
            seed=seed,
            size=size,
            first=first,
            limits=self.agent.limits,
            temperature=self.agent.sampling.temperature,
        )
        return await self.nodes.roll_out(order, self._ordered)

    async def _ordered(self, order: GroupOrder) -> Group:
        return await self._at_home(
            order.task, size=order.size, seed=order.seed, step=order.step, first=order.first
        )

    async def _at_home(self, task: Task, *, size: int, seed: int, step: int, first: int) -> Group:
        roll_out = partial(run_group, self.agent, task, seed=seed, step=step)
        if self.ended is None:
            return await roll_out(size=size, first=first)
        ended = self.ended

        async def one(sibling: int) -> Trajectory:
            (trajectory,) = (await roll_out(size=1, first=sibling)).trajectories
            await ended(trajectory)
            return trajectory

        try:
            async with asyncio.TaskGroup() as siblings:
                running = [siblings.create_task(one(sibling)) for sibling in range(first, first + size)]
        except ExceptionGroup as failures:  # a full disk ends several; one says why
            raise failures.exceptions[0] from None
        return Group(task=task, trajectories=tuple(sibling.result() for sibling in running))


def roller(agent: Agent, rl: RlConfig, *, seed: int, nodes: Nodes | None) -> RollOut:
    """Rolls out a ticket's group with `agent`, or on another node under the agent's limits and sampling."""
    road = Roller(agent=agent, nodes=nodes)

    async def of_ticket(ticket: Ticket) -> Group:
        return await road.roll_out(ticket.task, size=rl.rollouts_per_task, seed=seed, step=ticket.step)

    return of_ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Journaled:
    """`roll_out` by way of a journal, which may have the group, and has it in the end."""

    roll_out: RollOut
    journal: Journal | None
    size: int
    """Siblings of a group."""
    engine: EngineTimes

    async def found(self, ticket: Ticket) -> Group | None:
        """The group of an earlier process, if it is of weights that are behind this one."""
        if self.journal is None:
            return None
        group = await self.journal.found(ticket.step, ticket.task, size=self.size)
        return group if group is not None and self.may_take([group]) else None

    def may_take(self, groups: Sequence[Group]) -> bool:
        """Whether no token is of weights to come: this process may have learned less until now."""
        return newest(groups) <= self.engine.version

    async def made(self, ticket: Ticket) -> Group:
        """The group, rolled out and written down."""
        group = await self.roll_out(ticket)
        if self.journal is not None:
            await self.journal.ended(ticket.step, group)
        return group

    async def found_or_made(self, ticket: Ticket) -> Group:
        """The group, from whichever of the two."""
        return await self.found(ticket) or await self.made(ticket)


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
    _roll_out: RollOut = field(init=False)

    def __post_init__(self) -> None:
        self._waits = WaitingTimes(self.engine, clock=self.clock)
        self._roll_out = roller(self._waits.watching(self.agent), self.rl, seed=self.seed, nodes=self.nodes)

    async def take(self, step: int) -> Batch:
        groups = await self._round(step, self.rl.tasks_per_step, [])
        wanted = len(groups)
        for _ in range(self.rl.refill):
            if missing := num_missing(groups, self.rl, wanted=wanted):
                groups += await self._round(step, missing, groups)
        metrics = counts(self.rl, len(groups) - wanted, self.nodes)
        return Batch(groups=groups, staleness=staleness(groups, self.engine.version), metrics=metrics)

    def state(self) -> dict[str, Any]:
        return self.cursor.state()

    async def _round(self, step: int, count: int, former: Sequence[Group]) -> list[Group]:
        """Return the groups of the next `count` tasks; the step has the groups `former` already."""
        # An epoch may end in a step: a task then comes once, for two attempts would be the same attempt.
        seen = {group.task.id for group in former}
        tasks = {task.id: task for task in self.cursor.take(count) if task.id not in seen}
        tickets = [Ticket(step=step, task=task) for task in tasks.values()]
        attempts = Attempts(total=len(tickets) * self.rl.rollouts_per_task)
        groups: list[Group] = []
        with (
            self._waits.divided(self.budget),
            working(work_name(step, former), unit="groups", total=len(tickets), attempts=attempts) as work,
        ):
            wave = self.wave or max(1, len(tickets))
            for at in range(0, len(tickets), wave):
                groups += await self._wave(tickets[at : at + wave], work)
        return groups

    async def _wave(self, tickets: Sequence[Ticket], work: Work) -> list[Group]:
        """The groups of tickets that are rolled out together."""
        size = self.rl.rollouts_per_task
        road = Journaled(roll_out=self._roll_out, journal=self.journal, size=size, engine=self.engine)
        if self.wave is None:
            return await all_groups(work.counting(road.found_or_made), tickets)
        # All of them or none, and looked for beforehand: they are to begin in one moment.
        found = [await road.found(ticket) for ticket in tickets]
        groups = [group for group in found if group is not None]
        if len(groups) < len(tickets):
            return await all_groups(work.counting(road.made), tickets)
        work.done += len(groups)
        return groups


def work_name(step: int, former: Sequence[Group]) -> str:
    """Return the name under which progress shows the wait for groups of a step that has `former` already."""
    return f"step {step}, refill" if former else f"step {step}"


def counts(rl: RlConfig, num_refilled: int, nodes: Nodes | None) -> dict[str, float]:
    """Return the metrics of a batch: those of several nodes, and of the refill if the recipe has one."""
    refilled = {"groups/refilled": float(num_refilled)} if rl.refill else {}
    return (nodes.counts() if nodes else {}) | refilled


def newest(groups: Sequence[Group]) -> int:
    """The newest version that wrote a token of the groups; 0 where none did."""
    return max(
        (span.version for group in groups for t in group.trajectories for span in t.version_spans), default=0
    )


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
