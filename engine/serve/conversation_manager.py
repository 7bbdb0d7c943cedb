"""Admission and lifetime of conversations, from the order to the record.

    order ──full? 429; closing? 503──> ServedConversation in a task of the server ──> record ──> metrics

A conversation is a task of the server, not of its request: when the client disconnects, the conversation ends
in order and its text is recorded. The drain waits for active conversations; a request waits for the disk if
too many records are unwritten.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.conversation import ConversationOrder, ServedConversation
from rocstar.engine.serve.conversation_store import ConversationStore
from rocstar.engine.serve.metrics import ServeMetrics
from rocstar.engine.types import Trajectory
from rocstar.sandbox.http.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLimits:
    """The limits of conversations.

    Attributes:
        max_choices: the maximum number in flight, running or waiting; more are rejected.
        queue_timeout_s: the maximum wait of a choice for its slot in the engine.
        grace_s: the time for a stopped conversation to end.
        max_unwritten: the number of ended conversations waiting for the disk above which none starts.
    """

    max_choices: int = 1024
    queue_timeout_s: float = 120.0
    grace_s: float = 10.0
    max_unwritten: int = 256


class ConversationManager:
    """Invariant: at most `max_choices` choices are in flight; a conversation that was begun is counted once
    when it ends, and kept, however it ends. A conversation that waits for the disk holds its trajectories and
    nothing else.
    """

    def __init__(
        self,
        agent: Agent,
        tasks: asyncio.TaskGroup,
        *,
        store: ConversationStore | None,
        limits: ConversationLimits,
        metrics: ServeMetrics,
        note: Callable[[str], None],
    ) -> None:
        """Args:
        agent: the agent, whose engine is open.
        tasks: the server's task group, for the conversations.
        store: stores the records; None to store none.
        limits: the limits of conversations.
        metrics: the counters.
        note: shows a line to the operator.
        """
        self.agent, self.store, self.limits, self.metrics, self.note = agent, store, limits, metrics, note
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
        return secrets.token_hex(8) if self.store is None else self.store.begin()

    def check_room(self, num_choices: int) -> None:
        """Raise RequestError if the choices cannot start now."""
        if self.is_closing:
            raise RequestError("the server is shutting down; ask another", status=503, kind="closing")
        if self.in_flight + num_choices > self.limits.max_choices:
            self.metrics.turned_away += 1
            raise RequestError(
                f"{self.in_flight} choices are in flight and {num_choices} more were asked for; the server "
                f"takes {self.limits.max_choices} at a time: ask again later",
                status=429,
                kind="queue_full",
            )

    async def until_disk_follows(self) -> None:
        """Wait until few enough conversations wait for the disk. Raises RequestError at the timeout."""
        if self._disk_follows.is_set():
            return
        try:
            async with asyncio.timeout(self.limits.queue_timeout_s):
                await self._disk_follows.wait()
        except TimeoutError:
            raise RequestError(
                f"{self._unwritten} conversations wait for the disk, which takes no records; ask again later",
                status=503,
                kind="disk_behind",
            ) from None

    def begin(self, order: ConversationOrder) -> ServedConversation:
        """Start a conversation. `check_room` must have passed."""
        conversation = ServedConversation(self.agent, order, queue_timeout_s=self.limits.queue_timeout_s)
        self._going[conversation] = self._tasks.create_task(self._see_through(conversation))
        self.in_flight += order.num_choices
        self._idle.clear()
        self.metrics.conversations[(order.served_model,)] += 1
        return conversation

    def stop(self, conversation: ServedConversation) -> None:
        """Stop the conversation of a client that disconnected, and cancel it after the grace period."""
        task = self._going.get(conversation)
        if task is None or conversation.has_ended:
            return
        conversation.stop()
        timer = asyncio.get_running_loop().call_later(self.limits.grace_s, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())  # or it would hold the task for that long

    async def drain(self, timeout_s: float) -> bool:
        """Reject new conversations and wait for the active ones. Return True if all of them finished."""
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
            self.metrics.ended(conversation)
            trajectories = conversation.trajectories
            # While waiting for the disk, hold only the trajectories.
            del self._going[conversation], conversation
            try:
                await self._keep(name, trajectories)
            finally:
                self.in_flight -= num_choices
                if not self.in_flight:
                    self._idle.set()

    async def _keep(self, name: str, trajectories: Sequence[Trajectory]) -> None:
        if self.store is None:
            return
        self._unwritten += 1
        self._see_disk()
        try:
            await self.store.keep(name, trajectories)
        except OSError as error:
            self.metrics.records_lost += 1
            self.note(f"a conversation's record was not written: {error}; make room on the disk")
        finally:
            self._unwritten -= 1
            self._see_disk()

    def _see_disk(self) -> None:
        follows = self._unwritten < self.limits.max_unwritten
        (self._disk_follows.set if follows else self._disk_follows.clear)()
