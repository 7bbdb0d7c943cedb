"""Groups for the learner, rolled out ahead of it as far as the staleness bound allows.

    supply of tickets --may_start--> roll_out --> SlotBuffer --batch()--> learner --advance()--> more start

`batch` waits for the groups of the next batch. While the learner works, groups in flight continue (with an
engine that serves meanwhile), and a publish discards nothing: a trajectory continues with new weights, and
its version spans record the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from rocstar.engine.rollout.buffer import SlotBuffer
from rocstar.engine.types import Group, Task
from rocstar.engine.waits import waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A task and the step whose number names its attempts; together they name the group."""

    step: int
    task: Task

    @property
    def key(self) -> str:
        return f"s{self.step}/{self.task.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aged:
    """A group taken by the learner, and how many of its steps lie between the group's start and now."""

    group: Group
    staleness: int


class GroupFeed:
    """The host of a SlotBuffer: one asyncio task per group in flight.

    Invariant: a ticket that was drawn from the supply is in flight, finished, or was taken by the learner;
    leaving the block cancels what is in flight and nothing else.
    """

    def __init__(
        self, roll_out: Callable[[Ticket], Awaitable[Group]], supply: Iterator[Ticket], buffer: SlotBuffer[Group]
    ) -> None:
        self._roll_out, self._supply, self._buffer = roll_out, supply, buffer
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._tickets: dict[str, Ticket] = {}
        self._changed = asyncio.Event()
        self._bug: BaseException | None = None
        self._is_dry = False

    async def __aenter__(self) -> GroupFeed:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def in_flight(self) -> list[Ticket]:
        """Groups in flight, oldest first: a checkpoint restarts them."""
        return [self._tickets[key] for key in self._buffer.running]

    @property
    def finished(self) -> list[tuple[Ticket, Group, int]]:
        """Finished groups that wait for the learner, with their births: a checkpoint stores them."""
        return [(self._tickets[key], group, self._buffer.born(key)) for key, group in self._buffer.finished]

    @property
    def num_finished(self) -> int:
        """Groups that wait for the learner; may be asked from any thread."""
        return self._buffer.num_finished

    def restore(self, ticket: Ticket, group: Group | None, born: int) -> None:
        """A group of an earlier process, before the block is entered; None: it is rolled out again.

        SlotBufferError: the bound would be broken.
        """
        self._buffer.restore(ticket.key, born)
        self._tickets[ticket.key] = ticket
        if group is not None:
            self._buffer.finish(ticket.key, group)

    async def batch(self, deadline: float | None = None) -> list[Aged]:
        """The next batch, in the order of the starts: which groups it has is timing, their order is not.

        Shorter when the supply has ended, empty when nothing is left.

        Raises:
            TimeoutError: `deadline`, on the loop's clock, has passed.
        """
        async with waiting("the learner", "the groups of a batch", kind="batch", deadline=deadline):
            while True:
                if self._bug is not None:
                    raise self._bug
                left = len(self._buffer.running) + len(self._buffer.finished)
                count = min(self._buffer.room, left) if self._is_dry else self._buffer.room
                if not count:
                    return []
                if self._buffer.can_take(count):
                    break
                self._changed.clear()
                await self._changed.wait()
        taken = {key: Aged(group=group, staleness=age) for key, group, age in self._buffer.take(count)}
        batch = [taken[key] for key in self._tickets if key in taken]
        for key in taken:
            del self._tickets[key]
        self._start()
        return batch

    def take_more(self, count: int) -> None:
        """Let `batch` return `count` further groups for the current step; the supply may have grown."""
        self._buffer.take_more(count)
        self._is_dry = False
        self._start()

    def advance(self) -> None:
        """The learner's step is done and its weights serve."""
        self._buffer.advance()
        self._start()

    def _start(self) -> None:
        for key in self._buffer.running:
            if key not in self._tasks:  # restored
                self._launch(self._tickets[key])
        while not self._is_dry and self._buffer.may_start():
            ticket = next(self._supply, None)
            if ticket is None:
                self._is_dry = True
                break
            self._tickets[ticket.key] = ticket
            self._buffer.start(ticket.key)
            self._launch(ticket)
        self._changed.set()

    def _launch(self, ticket: Ticket) -> None:
        self._tasks[ticket.key] = asyncio.create_task(self._one(ticket), name=f"group {ticket.key}")

    async def _one(self, ticket: Ticket) -> None:
        try:
            self._buffer.finish(ticket.key, await self._roll_out(ticket))
        except Exception as error:  # no caller awaits this task: `batch` raises the bug
            self._bug = self._bug or error
        finally:
            del self._tasks[ticket.key]
            self._changed.set()
