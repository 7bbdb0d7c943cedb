"""Who is let in, and what goes on: every conversation from its order to its record.

    order ──full? 429; closing? 503──> ServedConversation in a task of the server ──> record ──> counts

Conversations are tasks of the server, not of the request that asked: a client that goes away ends its
conversation in order, and what was written is kept. Who waits: the drain, for what goes on; a request, for
the disk, where it is far behind.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.conversation import ConversationOrder, ServedConversation
from rocstar.engine.serve.counts import Counts
from rocstar.engine.serve.kept import KeptConversations
from rocstar.engine.serve.refusals import ServeRefusal
from rocstar.engine.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskLimits:
    """Bounds of what goes on.

    Attributes:
        max_choices: in flight at a time, running or waiting for a place; more are refused.
        queue_timeout_s: how long a choice may wait for its place in the engine.
        grace_s: how long a conversation may take to end when it is stopped.
        max_unwritten: conversations that have ended and wait for the disk; where there are more, no other
            begins.
    """

    max_choices: int = 1024
    queue_timeout_s: float = 120.0
    grace_s: float = 10.0
    max_unwritten: int = 256


class Desk:
    """Invariant: at most `max_choices` choices are in flight; a conversation that was begun is counted once
    when it ends, and kept, however it ends. A conversation that waits for the disk holds its trajectories and
    nothing else.
    """

    def __init__(
        self,
        agent: Agent,
        tasks: asyncio.TaskGroup,
        *,
        kept: KeptConversations | None,
        limits: DeskLimits,
        counts: Counts,
        note: Callable[[str], None],
    ) -> None:
        """
        Args:
            agent: whose engine is open.
            tasks: the server's; conversations are tasks in it.
            kept: takes the records; None = nothing is kept.
            limits: of what goes on.
            counts: for the metrics.
            note: shows the operator a line.
        """
        self.agent, self.kept, self.limits, self.counts, self.note = agent, kept, limits, counts, note
        self.is_closing = False
        self._tasks = tasks
        self.in_flight = 0
        """Choices that have begun and not ended."""
        self._going: dict[ServedConversation, asyncio.Task[None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._unwritten = 0
        self._disk_follows = asyncio.Event()
        self._disk_follows.set()

    def name(self) -> str:
        """The id of the next conversation. `begin` has to follow."""
        return secrets.token_hex(8) if self.kept is None else self.kept.begin()

    def check_room(self, num_choices: int) -> None:
        """ServeRefusal if so many choices cannot begin now."""
        if self.is_closing:
            raise ServeRefusal("the server is shutting down; ask another", status=503, code="closing")
        if self.in_flight + num_choices > self.limits.max_choices:
            self.counts.turned_away += 1
            raise ServeRefusal(
                f"{self.in_flight} choices are in flight and {num_choices} more were asked for; the server "
                f"takes {self.limits.max_choices} at a time: ask again later",
                status=429,
                code="queue_full",
            )

    async def until_disk_follows(self) -> None:
        """Until not too many conversations wait for the disk. ServeRefusal if that takes too long."""
        if self._disk_follows.is_set():
            return
        try:
            async with asyncio.timeout(self.limits.queue_timeout_s):
                await self._disk_follows.wait()
        except TimeoutError:
            raise ServeRefusal(
                f"{self._unwritten} conversations wait for the disk, which takes no records; ask again later",
                status=503,
                code="disk_behind",
            ) from None

    def begin(self, order: ConversationOrder) -> ServedConversation:
        """Start a conversation, for which there is room."""
        conversation = ServedConversation(self.agent, order, queue_timeout_s=self.limits.queue_timeout_s)
        self._going[conversation] = self._tasks.create_task(self._see_through(conversation))
        self.in_flight += order.num_choices
        self._idle.clear()
        self.counts.begun(order)
        return conversation

    def stop(self, conversation: ServedConversation) -> None:
        """Its client has gone. What does not end within the grace is cancelled."""
        task = self._going.get(conversation)
        if task is None or conversation.has_ended:
            return
        conversation.stop()
        timer = asyncio.get_running_loop().call_later(self.limits.grace_s, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())  # or it would hold the task for that long

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new, and wait for what goes on; whether all of it came to its own end."""
        self.is_closing = True
        ended = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            ended = False
            for conversation in list(self._going):
                self.stop(conversation)
            await self._idle.wait()
        return ended

    async def _see_through(self, conversation: ServedConversation) -> None:
        name, num_choices = conversation.order.id, conversation.order.num_choices
        try:
            await conversation.run()
        finally:
            self.counts.ended(conversation)
            trajectories = conversation.trajectories
            # Who waits for the disk holds no more than is to be written.
            del self._going[conversation], conversation
            try:
                await self._keep(name, trajectories)
            finally:
                self.in_flight -= num_choices
                if not self.in_flight:
                    self._idle.set()

    async def _keep(self, name: str, trajectories: Sequence[Trajectory]) -> None:
        if self.kept is None:
            return
        self._unwritten += 1
        self._see_disk()
        try:
            if trajectories:
                await self.kept.keep(name, trajectories)
            else:
                await self.kept.forget(name)
        except OSError as error:
            self.counts.records_lost += 1
            self.note(f"a conversation's record was not written: {error}; make room on the disk")
        finally:
            self._unwritten -= 1
            self._see_disk()

    def _see_disk(self) -> None:
        follows = self._unwritten < self.limits.max_unwritten
        (self._disk_follows.set if follows else self._disk_follows.clear)()
