"""Batches rolled out ahead of the learner: asynchronous training with a bound on staleness.

    cursor -> tickets -> GroupFeed (engine/rollout/feed.py; the bound is buffer.py's) -> take(step)
                journal ──^ groups of an earlier process

With `rl.refill` a step takes one further group for each group without signal, and the supply grows by as many
tickets. No group is discarded because another ended earlier: a later step takes it.

`take` waits for the groups of its batch, which may be finished already. Rollouts continue while the learner
works, evaluates or saves, as far as the engine serves meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any

from rocstar.engine.inference.base import EngineTimes
from rocstar.engine.nodes.nodes import Nodes
from rocstar.engine.progress.progress import Attempts, working
from rocstar.engine.rollout.buffer import SlotBuffer, SlotBufferError
from rocstar.engine.rollout.feed import GroupFeed, Ticket
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Group, Task
from rocstar.train.groups.fork_rule import fork_rule
from rocstar.train.groups.journal import Journal
from rocstar.train.groups.selection import num_missing
from rocstar.train.groups.source import Batch, Roller, counts, staleness, unneeded_of, versions_of, work_name
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.groups.waiting_times import WaitingTimes
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.record.time_budget import TimeBudget

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

    def give_back(self, tickets: Sequence[Ticket]) -> None:
        """They are the next to be handed out."""
        self.drawn = [*tickets, *self.drawn]
        self.left += len(tickets)

    def take_out(self, keys: Collection[str]) -> bool:
        """Hand these out before those that come first; False, and nothing is, if one is not to come."""
        drawn, others, missing = list[Ticket](), list[Ticket](), set(keys)
        while missing and (ticket := next(self, None)) is not None:
            drawn.append(ticket)
            if ticket.key in missing:
                missing.remove(ticket.key)
            else:
                others.append(ticket)
        self.give_back(drawn if missing else others)
        return not missing

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
    """Rolls out up to `rl.max_staleness` steps ahead.

    Invariant: no token of a batch is older than `rl.max_staleness` versions. `state` has the
    tickets of groups in flight or finished; the tokens of finished ones are in the journal.

    After a resume the learned batches are returned again unchanged, without rollouts; then the other finished
    groups are taken, with their age.
    """

    def __init__(
        self,
        agent: Agent,
        engine: EngineTimes,
        tickets: Tickets,
        rl: RlConfig,
        *,
        seed: int,
        budget: TimeBudget,
        tasks: Sequence[Task],
        nodes: Nodes | None = None,
        journal: Journal | None = None,
    ) -> None:
        """tasks: of the stage."""
        self._tickets, self._tasks, self._engine = tickets, {task.id: task for task in tasks}, engine
        self._rl, self._seed, self._nodes, self._budget = rl, seed, nodes, budget
        self._batch_timeout_s = BATCH_TIMEOUT_FACTOR * agent.limits.timeout_s
        self._waits, self._attempts = WaitingTimes(engine), Attempts()
        watched = self._waits.watching(agent)
        self._roller = Roller(
            agent=watched,
            nodes=nodes,
            journal=journal,
            engine=engine,
            forks=fork_rule(rl),
            unneeded=unneeded_of(rl, seed),
        )
        self._feed: GroupFeed | None = None
        self._has_taken = False

    async def __aenter__(self) -> AheadGroups:
        journal = self._roller.journal
        if journal is None or not journal.goes_on:
            self._feed = await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is in flight is cancelled, on every node."""
        if self._feed is not None:
            await self._feed.__aexit__(kind, error, trace)

    async def take(self, step: int) -> Batch:
        """The step before is learned by now. AssertionError if a token is too old: never, says the buffer."""
        if self._feed is None:
            if (again := await self._learned(step)) is not None:
                return again
            self._feed = await self._begin()
        if self._has_taken:
            self._feed.advance()
        self._has_taken = True
        groups = await self._taken(self._feed, step, self._tickets.batch, [])
        wanted = len(groups)
        for _ in range(self._rl.refill):
            if missing := num_missing(groups, self._rl, wanted=wanted):
                self._tickets.left += missing
                self._feed.take_more(missing)
                groups += await self._taken(self._feed, step, missing, groups)
        found, bound = staleness(groups, self._engine.version), self._rl.max_staleness
        assert found <= bound, f"a token is {found} versions old, {bound} allowed"
        return self._batch(groups, len(groups) - wanted, self._nodes)

    async def _taken(self, feed: GroupFeed, step: int, count: int, former: Sequence[Group]) -> list[Group]:
        """Return the next `count` groups of a step, fewer if the supply ends; `former`: those it has."""
        deadline = asyncio.get_running_loop().time() + self._batch_timeout_s
        shown = working(
            work_name(step, former),
            unit="groups",
            count=lambda: (min(count, feed.num_finished), count),
            attempts=self._attempts,
        )
        with self._waits.divided(self._budget), shown:
            return [one.group for one in await feed.batch(deadline)]

    def _batch(self, groups: list[Group], num_refilled: int, nodes: Nodes | None) -> Batch:
        found = staleness(groups, self._engine.version)
        metrics = counts(self._rl, num_refilled, nodes) | self._tickets.cursor.observe(groups)
        return Batch(groups=groups, staleness=found, metrics=metrics)

    async def _learned(self, step: int) -> Batch | None:
        """The batch of a step that an earlier process learned from, and that this stage supplies."""
        if self._roller.journal is None:
            return None
        groups = await self._roller.journal.learned(step, self._tasks)
        if groups is None:
            return None
        keys = [Ticket(step=group.trajectories[0].key.step, task=group.task).key for group in groups]
        num_refilled = max(0, len(groups) - self._tickets.batch)
        self._tickets.left += num_refilled
        if self._roller.may_take(groups) and self._tickets.take_out(keys):
            # The earlier process had drawn so many before it observed this batch.
            self._tickets.give_back(list(islice(self._tickets, self._rl.max_staleness * self._tickets.batch)))
            return self._batch(groups, num_refilled, None)
        self._tickets.left -= num_refilled
        return None

    async def _made(self, ticket: Ticket) -> Group:
        """Return the group of a ticket that starts now. Its birth in the buffer is this step: a group of an
        earlier process is reused only if the current weights wrote all of it."""
        size = self._rl.rollouts_per_task
        with self._attempts.installed():
            found = await self._roller.found(ticket.task, size=size, step=ticket.step)
            if found is not None and staleness([found], self._engine.version) == 0:
                return found
            return await self._roller.roll_out(ticket.task, size=size, seed=self._seed, step=ticket.step, again=True)

    async def _begin(self) -> GroupFeed:
        """Start to roll out, with the groups of an earlier process."""
        bound = self._rl.max_staleness
        buffer: SlotBuffer[Group] = SlotBuffer(batch=self._tickets.batch, max_staleness=bound)
        feed = GroupFeed(self._made, self._tickets, buffer)
        first = list(islice(self._tickets, buffer.num_slots))
        left = []
        for ticket in first:
            size, version = self._rl.rollouts_per_task, self._engine.version
            found = await self._roller.found(ticket.task, size=size, step=ticket.step)
            if found is None:
                left.append(ticket)
                continue
            try:
                feed.restore(ticket, found, min(versions_of([found]), default=version) - version)
            except SlotBufferError:  # too old for the step that would take it
                left.append(ticket)
        self._tickets.give_back(left)
        return await feed.__aenter__()

    def state(self) -> dict[str, Any]:
        feed, tickets = self._feed, self._tickets
        begun = [*feed.in_flight, *(ticket for ticket, _, _ in feed.finished)] if feed else []
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
    """Return the supply at `state`: groups that had been begun come first. The stage may be longer now."""
    cursor.restore(state["cursor"])
    left = state["left"] + planned - state.get("planned", planned)
    tickets = Tickets(cursor, batch=batch, planned=planned, left=left, next_step=state["next_step"])
    by_id = {task.id: task for task in tasks}
    tickets.drawn = [Ticket(step=step, task=by_id[task_id]) for step, task_id in state["again"]]
    return tickets
