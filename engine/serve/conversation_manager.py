"""Admission and lifetime of conversations, from the order to the record.

    order ──full? 429; closing? 503──> ServedConversation in a task of the server ──> record ──> metrics

A conversation is a task of the server, not of its request: when the client disconnects, the conversation ends
in order and its text is recorded. The drain waits for active conversations; a request waits for the disk if
too many records are unwritten.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import Metric

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.conversation import ConversationOrder, ServedConversation
from rocstar.engine.serve.conversation_store import CONVERSATION, ConversationStore
from rocstar.engine.types import Failed, Trajectory
from rocstar.sandbox.http.access_log import Network
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.guard import Owners
from rocstar.sandbox.http.metrics import SecondsHistogram, ServerMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The settings of a server.

    Attributes:
        owners: the owners of tokens; without any, requests on loopback need no token.
        trusted_proxies: peers whose X-Forwarded-For the access log uses.
        max_context: tokens of a prompt and its response together; None if the engine does not report it.
        max_choices: the maximum number in flight, running or waiting; more are rejected.
        queue_timeout_s: the maximum wait of a choice for its slot in the engine.
        grace_s: the time for a stopped conversation to end.
        max_unwritten: the number of ended conversations waiting for the disk above which none starts.
        ping_s: the time without parts after which a stream sends a ping.
        write_timeout_s: the maximum time that a client may not read its stream.
        body_timeout_s: the time for a body to arrive.
        max_body_bytes: the maximum size of a body.
        max_connections: connections of clients; seven eighths are for authenticated clients.
        isolation: the isolation of the tools, for the responses.
    """

    owners: Owners = field(default_factory=Owners)
    trusted_proxies: tuple[Network, ...] = ()
    max_context: int | None = None
    max_choices: int = 1024
    queue_timeout_s: float = 120.0
    grace_s: float = 10.0
    max_unwritten: int = 256
    ping_s: float = 10.0
    write_timeout_s: float = 60.0
    body_timeout_s: float = 30.0
    max_body_bytes: int = 16 << 20
    max_connections: int = 4096
    isolation: str = ""


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
        options: ServeOptions,
        metrics: ServeMetrics,
        note: Callable[[str], None],
    ) -> None:
        """Args:
        agent: the agent, whose engine is open.
        tasks: the server's task group, for the conversations.
        store: stores the records; None to store none.
        options: of the server.
        metrics: the counters.
        note: shows a line to the operator.
        """
        self.agent, self.store, self.options, self.metrics, self.note = agent, store, options, metrics, note
        self.is_closing = False
        self._tasks = tasks
        self.in_flight = 0
        """Choices that have begun and not ended."""
        self._active: dict[ServedConversation, asyncio.Task[None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._unwritten = 0
        self._disk_keeps_up = asyncio.Event()
        self._disk_keeps_up.set()

    def check_room(self, num_choices: int) -> None:
        """Raise RequestError if the choices cannot start now."""
        if self.is_closing:
            raise RequestError("the server is shutting down; ask another", status=503, kind="closing")
        if self.in_flight + num_choices > self.options.max_choices:
            self.metrics.turned_away += 1
            raise RequestError(
                f"{self.in_flight} choices are in flight and {num_choices} more were asked for; the server "
                f"takes {self.options.max_choices} at a time: ask again later",
                status=429,
                kind="queue_full",
            )

    async def wait_for_disk(self) -> None:
        """Wait until few enough conversations wait for the disk. Raises RequestError at the timeout."""
        if self._disk_keeps_up.is_set():
            return
        try:
            async with asyncio.timeout(self.options.queue_timeout_s):
                await self._disk_keeps_up.wait()
        except TimeoutError:
            raise RequestError(
                f"{self._unwritten} conversations wait for the disk, which takes no records; ask again later",
                status=503,
                kind="disk_behind",
            ) from None

    def enter(self, num_choices: int) -> None:
        """Count choices as in flight. `check_room` must have passed, and `leave` has to follow."""
        self.in_flight += num_choices
        self._idle.clear()

    def leave(self, num_choices: int) -> None:
        """The choices have ended."""
        self.in_flight -= num_choices
        if not self.in_flight:
            self._idle.set()

    def begin_record(self) -> str:
        """Return the id of a conversation; `keep` has to follow."""
        return secrets.token_hex(8) if self.store is None else self.store.begin()

    def begin(self, order: ConversationOrder) -> ServedConversation:
        """Start a conversation and give it its id. `check_room` must have passed."""
        name = self.begin_record()
        task = replace(order.task, meta={**order.task.meta, CONVERSATION: name})
        order = replace(order, id=name, task=task)
        conversation = ServedConversation(self.agent, order, queue_timeout_s=self.options.queue_timeout_s)
        self._active[conversation] = self._tasks.create_task(self._run(conversation))
        self.enter(order.num_choices)
        self.metrics.conversations[(order.served_model,)] += 1
        return conversation

    def stop(self, conversation: ServedConversation) -> None:
        """Stop the conversation of a client that disconnected, and cancel it after the grace period."""
        task = self._active.get(conversation)
        if task is None or conversation.ended.is_set():
            return
        conversation.stop()
        timer = asyncio.get_running_loop().call_later(self.options.grace_s, task.cancel)
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
            for conversation in list(self._active):
                self.stop(conversation)
            await self._idle.wait()
        return ended

    async def _run(self, conversation: ServedConversation) -> None:
        name, num_choices = conversation.order.id, conversation.order.num_choices
        try:
            await conversation.run()
        finally:
            self.metrics.ended(conversation.trajectories)
            trajectories = conversation.trajectories
            # While waiting for the disk, hold only the trajectories.
            del self._active[conversation], conversation
            try:
                await self.keep(name, trajectories)
            finally:
                self.leave(num_choices)

    async def keep(self, name: str, trajectories: Sequence[Trajectory]) -> None:
        """Write the record of a conversation that has ended; a full disk is counted and shown to the operator."""
        if self.store is None:
            return
        self._unwritten += 1
        self._check_disk()
        try:
            await self.store.keep(name, trajectories)
        except OSError as error:
            self.metrics.records_lost += 1
            self.note(f"a conversation's record was not written: {error}; make room on the disk")
        finally:
            self._unwritten -= 1
            self._check_disk()

    def _check_disk(self) -> None:
        follows = self._unwritten < self.options.max_unwritten
        (self._disk_keeps_up.set if follows else self._disk_keeps_up.clear)()


FIRST_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_GAUGES = {
    "choices_in_flight": "Choices that have started and not ended.",
    "kv_tokens_total": "Capacity of the engine's KV cache.",
    "kv_tokens_used": "Tokens of the KV cache in use.",
    "engine_running": "Requests that run in the engine.",
    "engine_waiting": "Requests that wait in the engine.",
}


class ServeMetrics(ServerMetrics):
    """The counts of one endpoint.

    Invariant: tokens are counted once, by origin, when their conversation ends.
    """

    prefix = "rocstar_serve_"

    def __init__(self, read_gauges: Callable[[], Mapping[str, float]] = dict) -> None:
        """read_gauges: returns further gauges by name, when /metrics is read."""
        super().__init__()
        self.read_gauges = read_gauges
        self.conversations: Counter[tuple[str]] = Counter()
        self.ends: Counter[tuple[str]] = Counter()
        self.tokens: Counter[tuple[str]] = Counter()
        self.tool_calls: Counter[tuple[str]] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()
        self.disconnects = self.turned_away = self.records_lost = self.thumbs = 0
        self.first_part = SecondsHistogram(FIRST_BUCKETS_S)
        """The time from a request to the first part of its stream."""

    def ended(self, trajectories: Sequence[Trajectory]) -> None:
        """Count a conversation that has ended."""
        for t in trajectories:
            reason: str = t.finish_reason
            if reason == "aborted" and isinstance(t.outcome, Failed):
                reason = t.outcome.kind
            self.ends[(reason,)] += 1
            for segment in t.segments:
                self.tokens[(segment.origin,)] += segment.end - segment.start
            for result in t.results:
                self.tool_calls[(result.status,)] += 1

    def collect(self) -> Iterator[Metric]:
        for name, value in self.read_gauges().items():
            yield self.plain(name, _GAUGES.get(name, "Reported by the engine."), value)
        for name, text, value in (
            ("disconnects_total", "Clients that disconnected before their response.", self.disconnects),
            ("turned_away_total", "Requests refused because too many were in flight.", self.turned_away),
            ("records_lost_total", "Conversations whose record could not be written.", self.records_lost),
            ("thumbs_total", "Stored feedback of people.", self.thumbs),
        ):
            yield self.plain(name, text, value)
        for name, text, labels, counts in (
            ("conversations_total", "Conversations started, by served model.", ("face",), self.conversations),
            ("choices_ended_total", "Choices ended, by reason or failure.", ("reason",), self.ends),
            ("tokens_total", "Tokens of choices that ended, by origin.", ("origin",), self.tokens),
            ("tool_calls_total", "Tool calls, by status of their result.", ("status",), self.tool_calls),
        ):
            yield self.labelled(name, text, labels, counts)
        text = "HTTP responses, by route and status."
        yield self.labelled("answers_total", text, ("route", "code"), self.answers)
        text = "Time from a request to the first part of its stream."
        yield self.first_part.family(f"{self.prefix}first_part_seconds", text)
