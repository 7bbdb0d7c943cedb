"""Reads a client's answers from Redis and checks that Redis still has the client's entries."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field

from rocstar.sandbox.fabric.open_calls import Effect, OpenCalls
from rocstar.sandbox.fabric.owner_queue import CallWindow
from rocstar.sandbox.fabric.redis_commands import ClientCommands, FabricMessage
from rocstar.sandbox.fabric.redis_connection import RedisConnection, id_order
from rocstar.sandbox.fabric.sender import Sender
from rocstar.sandbox.fabric.wire import Answer, WireError, WorkerInfo, WrittenAnswers

AUDIT_STEP = 16
SMALLEST_WINDOW = 64
AHEAD = 4
"""The maximum of calls in Redis per program that can run, if that exceeds SMALLEST_WINDOW: a worker holds
two, and two wait for it."""

TURN_BYTES = 1 << 16
"""Bytes of messages after which the reader yields to the event loop."""

RETRY_DELAY_S = 0.05


UNSERVED = CallWindow(SMALLEST_WINDOW // 2, SMALLEST_WINDOW)
"""The window of a flavour whose workers are unknown."""

UNSEEN_S = 2.0
"""Seconds after which the list of workers is considered stale."""


def windows_of(workers: Iterable[WorkerInfo]) -> dict[str, CallWindow]:
    """Return the call window of each flavour that has a worker."""
    capacities: Counter[str] = Counter()
    for worker in workers:
        capacities.update(dict.fromkeys(worker.flavours, worker.capacity))
    return {
        flavour: CallWindow(capacity, max(SMALLEST_WINDOW, AHEAD * capacity))
        for flavour, capacity in capacities.items()
    }


@dataclass(eq=False)
class Receiver:
    """Reads the reply stream of one client and audits its entries. Wakes the sender for calls to send again.

    flavours: those with a live worker. served_at: the `loop.time()` at which a flavour last had one.
    counted_at: the time of the last count of workers, which has had no gap since looking_since. A flavour
    whose workers are gone keeps its window: they may return, and calls in Redis can no longer be shared among
    owners.
    """

    connection: RedisConnection
    redis: ClientCommands
    open_calls: OpenCalls
    counts: Counter[str]
    sender: Sender
    _: KW_ONLY
    audit_s: float
    _cursor: str = "0-0"
    _audited_era: int = -1
    _suspects: dict[str, str] = field(default_factory=dict)
    _server_minus_loop_s: float | None = None
    _data_lost: bool = False
    workers: list[WorkerInfo] = field(default_factory=list)
    flavours: frozenset[str] = field(default_factory=frozenset)
    served_at: dict[str, float] = field(default_factory=dict)
    counted_at: float = 0.0
    looking_since: float = 0.0

    async def read(self) -> None:
        read = 0
        for stream_id, message in await self.redis.read(self._cursor):
            try:
                answers = await self._answers(message)
            except WireError:
                self.counts["unreadable"] += 1  # the audit finds these entries missing and resends them
            else:
                self._receive(answers)
            self._cursor = stream_id
            if message.chunks:
                await self.redis.delete_chunks([message.chunks])
            if (read := read + len(message.blob)) >= TURN_BYTES:
                read = 0
                await asyncio.sleep(0)  # yield to the event loop

    async def _answers(self, message: FabricMessage) -> list[Answer]:
        written = WrittenAnswers(message.blob)
        if not written.sizes:
            return written.answers()
        chunks = await self.redis.get_chunks(message.chunks, written.sizes)
        return await asyncio.to_thread(written.answers, chunks)

    def _receive(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            for effect, call_id in self.open_calls.answer(answer):
                if effect is Effect.LATE:
                    self.counts["late_answers"] += 1
                elif effect is Effect.RETRY:
                    self.counts["retries"] += 1
                    delay_s = RETRY_DELAY_S * 2 ** self.open_calls.calls[call_id].attempts
                    asyncio.get_running_loop().call_later(delay_s, self._requeue, call_id)
        if self.open_calls.abandoned or self.open_calls.next_key is not None:
            self.sender.wake.set()

    def _requeue(self, call_id: int) -> None:
        self.open_calls.requeue(call_id)
        self.sender.wake.set()

    async def audit(self) -> None:
        """Every `audit_s`: renew the lease, count the workers, and check that Redis still holds the entries:
        all of them after a failure, otherwise a few in rotation."""
        era = self.connection.era
        await self.refresh()
        everything, self._data_lost = self._data_lost or era != self._audited_era, False
        await self._check(everything=everything)
        self._audited_era = era
        await asyncio.sleep(self.audit_s)

    async def refresh(self) -> None:
        clock = self.connection.clock
        if self._server_minus_loop_s is None:
            self._server_minus_loop_s = await self.redis.server_s() - clock()
        server_s, is_known, self.workers = await self.redis.keep_up(
            self._cursor, clock() + self._server_minus_loop_s, self.sender.live_chunks()
        )
        now = clock()
        if now - self.counted_at > max(UNSEEN_S, 4 * self.audit_s):
            self.looking_since = now
        self._server_minus_loop_s = server_s - now
        self._data_lost |= not is_known
        self.counted_at = now
        self.flavours = frozenset(name for worker in self.workers for name in worker.flavours)
        self.served_at.update(dict.fromkeys(self.flavours, now))
        self.open_calls.windows = {**self.open_calls.windows, **windows_of(self.workers)}
        if self.open_calls.next_key is not None:
            self.sender.wake.set()

    async def _check(self, *, everything: bool) -> None:
        refs = list(self.open_calls.entries) if everything else self.open_calls.oldest(AUDIT_STEP)
        for start in range(0, len(refs), AUDIT_STEP):
            newest, missing = await self.redis.audit(refs[start : start + AUDIT_STEP])
            for ref in missing:
                self._suspects[ref] = min(self._suspects.get(ref, newest), newest, key=id_order)
            if newest != "0-0" and id_order(newest) < id_order(self._cursor):
                self._cursor = "0-0"  # a new stream of that name, whose clock is behind
        # A missing entry was answered in a message that Redis already had; once all of those are read, a
        # missing entry without an answer is lost, and its calls are sent again.
        for ref, newest in list(self._suspects.items()):
            if ref in self.open_calls.entries and id_order(self._cursor) < id_order(newest):
                continue  # its answers may be unread
            del self._suspects[ref]
            if self.open_calls.lost(ref):
                self.counts["lost_entries"] += 1
                self.sender.wake.set()
