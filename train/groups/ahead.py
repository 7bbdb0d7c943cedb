"""Batches that were rolled out ahead of the learner: asynchronous training with a bound on staleness.

    cursor -> tickets -> GroupFeed (engine/rollout/feed.py; the bound is buffer.py's) -> take(step)

Who waits: `take` for the groups of its batch, which may have been finished long ago; the rollouts for nobody.
They go on while the learner works, evaluates or saves, as far as the engine serves meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from rocstar.engine.inference.base import EngineTimes
from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.progress.progress import Attempts, working
from rocstar.engine.rollout.buffer import SlotBuffer
from rocstar.engine.rollout.feed import GroupFeed, Ticket
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Group, Task
from rocstar.train.groups.source import Batch, roller, staleness
from rocstar.train.groups.waiting_times import WaitingTimes
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.record.time_budget import TimeBudget
from rocstar.train.tasks.data import TaskCursor

BATCH_TIMEOUT_FACTOR = 4.0
"""A batch is given up after so many trajectory time limits: several may follow each other in its groups."""


class Tickets:
    """The stage's supply: `batch` tasks per step number, each task once per number, `planned` tickets in all,
    `left` of them still to come.

    Invariant: what `drawn` holds was taken from the cursor and not handed out yet.
    """

    def __init__(
        self, cursor: TaskCursor, *, batch: int, planned: int, next_step: int, left: int | None = None
    ) -> None:
        self.cursor, self.batch, self.planned, self.next_step = cursor, batch, planned, next_step
        self.left = planned if left is None else left
        self.drawn: list[Ticket] = []

    def __iter__(self) -> Iterator[Ticket]:
        return self

    def __next__(self) -> Ticket:
        if not self.left:
            raise StopIteration
        if not self.drawn:
            # An epoch may end inside: a task then comes once, for two attempts would be the same attempt.
            tasks = {task.id: task for task in self.cursor.take(self.batch)}
            self.drawn = [Ticket(step=self.next_step, task=task) for task in tasks.values()]
            self.next_step += 1
        self.left -= 1
        return self.drawn.pop(0)


class AheadGroups:
    """Rolls out up to `max_staleness` steps ahead.

    Invariant: no token of a batch is older than `max_staleness` versions. What a checkpoint finds in flight
    or waiting is rolled out again after a resume, for `state` keeps the tickets and not their tokens.
    """

    def __init__(
        self,
        feed: GroupFeed,
        tickets: Tickets,
        *,
        engine: EngineTimes,
        max_staleness: int,
        batch_timeout_s: float,
        budget: TimeBudget,
        idle: WaitingTimes,
        attempts: Attempts,
        nodes: Nodes | None = None,
    ) -> None:
        """attempts: those that the feed's groups count in."""
        self._feed, self._tickets, self._engine = feed, tickets, engine
        self._attempts = attempts
        self._max_staleness, self._batch_timeout_s = max_staleness, batch_timeout_s
        self._budget, self._waits, self._nodes = budget, idle, nodes
        self._has_taken = False

    async def take(self, step: int) -> Batch:
        """The step before is learned by now. AssertionError if a token is too old: never, says the buffer."""
        if self._has_taken:
            self._feed.advance()
        self._has_taken = True
        deadline = asyncio.get_running_loop().time() + self._batch_timeout_s
        feed, batch = self._feed, self._tickets.batch
        shown = working(
            f"step {step}",
            unit="groups",
            count=lambda: (min(batch, feed.num_finished), batch),
            attempts=self._attempts,
        )
        with self._waits.divided(self._budget), shown:
            aged = await feed.batch(deadline)
        groups = [one.group for one in aged]
        found = staleness(groups, self._engine.version)
        assert found <= self._max_staleness, f"a token is {found} versions old, {self._max_staleness} allowed"
        return Batch(groups=groups, staleness=found, metrics=self._nodes.counts() if self._nodes else {})

    def state(self) -> dict[str, Any]:
        feed, tickets = self._feed, self._tickets
        begun = [*feed.in_flight, *(ticket for ticket, _, _ in feed.finished)]
        again = sorted(begun, key=lambda ticket: ticket.step) + tickets.drawn
        return {
            "cursor": tickets.cursor.state(),
            "again": [[ticket.step, ticket.task.id] for ticket in again],
            "left": tickets.left + len(begun),
            "planned": tickets.planned,
            "next_step": tickets.next_step,
        }


def tickets_from(
    state: Mapping[str, Any], cursor: TaskCursor, tasks: Sequence[Task], batch: int, *, planned: int
) -> Tickets:
    """The supply where `state` left it: what had been begun comes first. The stage may be longer by now."""
    cursor.restore(state["cursor"])
    left = state["left"] + planned - state.get("planned", planned)
    tickets = Tickets(cursor, batch=batch, planned=planned, left=left, next_step=state["next_step"])
    by_id = {task.id: task for task in tasks}
    tickets.drawn = [Ticket(step=step, task=by_id[task_id]) for step, task_id in state["again"]]
    return tickets


@contextlib.asynccontextmanager
async def ahead_source(
    agent: Agent,
    engine: EngineTimes,
    tickets: Tickets,
    rl: RlConfig,
    *,
    seed: int,
    budget: TimeBudget,
    nodes: Nodes | None = None,
) -> AsyncIterator[AheadGroups]:
    """Opens the source; leaving it cancels what is in flight, on every node."""
    idle = WaitingTimes(engine)
    roll_out = roller(idle.watching(agent), rl, seed=seed, nodes=nodes)
    buffer: SlotBuffer[Group] = SlotBuffer(batch=tickets.batch, max_staleness=rl.max_staleness)
    attempts = Attempts()
    async with GroupFeed(attempts.counting(roll_out), tickets, buffer) as feed:
        yield AheadGroups(
            feed,
            tickets,
            engine=engine,
            max_staleness=rl.max_staleness,
            batch_timeout_s=BATCH_TIMEOUT_FACTOR * agent.limits.timeout_s,
            budget=budget,
            idle=idle,
            attempts=attempts,
            nodes=nodes,
        )
