"""The fabric's worker: takes entries while it has room, runs them, stores answers, then acknowledges.

    _pull    -- XREADGROUP, one entry at a time, while there is room --+
    _reclaim -- XAUTOCLAIM of entries whose worker fell silent --------+--> _run, a task per entry
                                                                                |  answers, as they come
    _heartbeat: renew the lease, claim the held entries;        PendingAnswers.store: answers + XACK, one step
                stop entries that Redis no longer has

`_pull` and `_reclaim` wait for room, `store` waits for answers, an entry's task waits for the sandbox. An
entry is held from its delivery until its last answer is stored. Heartbeats claim the held entries, so that
another worker takes them `claim_idle_s` after this one died.
"""

import asyncio
import contextlib
import math
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import cast

from redis import exceptions

from rocstar.sandbox.fabric.owner_queue import spare_calls
from rocstar.sandbox.fabric.pending_answers import PendingAnswers
from rocstar.sandbox.fabric.redis_commands import GROUP_LOST, LEASE_S, WorkerCommands, WorkerEntry
from rocstar.sandbox.fabric.redis_connection import PREFIX, REDIS_ERRORS, RedisConnection, id_order, unique_name
from rocstar.sandbox.fabric.wire import Outcome, WireCall, WireError, WorkerInfo, WrittenEntry
from rocstar.sandbox.types import BatchSandbox, SandboxError, deadline_error

COUNTERS = (
    *("entries", "calls", "reclaimed", "skipped_calls", "orphaned_calls"),
    *("expired_calls", "abandoned", "poisoned"),
)

FORGET_EVERY_S = 30.0
STOP_TIMEOUT_S = 2.0


class RedisWorker:
    """Runs calls from Redis on `sandbox`. `await worker.run()` returns after `stop()`, or raises SandboxError
    of kind `fabric` if Redis did not answer for `patience_s`.

    Args:
        capacity: programs that the sandbox runs at a time.
        prefetch: calls held beyond those, so that the sandbox does not wait for Redis (default: capacity plus
            the places for idle owners).
        heartbeat_s: the interval at which held entries are claimed.
        claim_idle_s: seconds without a heartbeat after which another worker takes the entries.
        max_deliveries: an entry whose workers died this often is answered with an error.
        store_s: seconds that an answer waits for others, to be stored together.
        drain_s: seconds that running programs get after `stop`.

    Invariants: an entry is acknowledged in the same step that stores its last answer, never before; an entry
    is pulled only while fewer than capacity + prefetch calls are waiting here.
    """

    def __init__(
        self,
        url: str | RedisConnection,
        sandbox: BatchSandbox,
        capacity: int,
        *,
        flavours: Sequence[str] = ("stdlib",),
        prefix: str = PREFIX,
        name: str | None = None,
        prefetch: int | None = None,
        heartbeat_s: float = 0.5,
        claim_idle_s: float = 2.0,
        max_deliveries: int = 5,
        store_s: float = 0.01,
        patience_s: float = 300.0,
        drain_s: float = 10.0,
    ) -> None:
        if capacity < 1 or max_deliveries < 1 or (prefetch is not None and prefetch < 0):
            raise ValueError("capacity and max_deliveries must be at least 1, prefetch at least 0")
        if not 0 < heartbeat_s < claim_idle_s:
            raise ValueError(f"heartbeat_s={heartbeat_s} must be between 0 and claim_idle_s={claim_idle_s}")
        self.info = WorkerInfo(name=name or unique_name(), capacity=capacity, flavours=tuple(dict.fromkeys(flavours)))
        self._connection = url if isinstance(url, RedisConnection) else RedisConnection(url)
        self._redis = WorkerCommands(self._connection.redis, prefix, self.info)
        self._sandbox = sandbox
        self._limit = capacity + (capacity + spare_calls(capacity) if prefetch is None else prefetch)
        self._heartbeat_s = heartbeat_s
        self._claim_idle_s = claim_idle_s
        self._max_deliveries = max_deliveries
        self._patience_s = patience_s
        self._drain_s = drain_s
        self._held: dict[str, WorkerEntry] = {}
        self._pending = PendingAnswers(self._redis, self._release, store_s=store_s)
        self._waiting = 0
        self._has_groups = False
        self._given_up: SandboxError | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._emptied = asyncio.Event()
        self._stopping = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._server_minus_loop_s = 0.0
        self._counts: Counter[str] = Counter()
        self.ready = asyncio.Event()

    def counters(self) -> Mapping[str, int]:
        """Return counts since the start: `entries`, `calls`, `reclaimed` entries of other workers,
        `skipped_calls` that a dead worker answered, `orphaned_calls` of dead clients, `expired_calls`,
        `abandoned` and `poisoned` entries, `reconnects`."""
        return {**dict.fromkeys(COUNTERS, 0), **self._counts, "reconnects": self._connection.reconnects}

    def stop(self) -> bool:
        """Take no more entries; `run` returns once the held ones are answered, or returned after `drain_s`.
        Return False if the worker was already stopping."""
        was_stopping = self._stopping.is_set()
        self._stopping.set()
        return not was_stopping

    async def run(self) -> None:
        """Run calls until `stop`."""
        try:
            await self._connection.open(self._patience_s)
            try:
                self._server_minus_loop_s = await self._redis.server_s() - asyncio.get_running_loop().time()
            except REDIS_ERRORS as error:
                self._connection.failed("start", error)
                raise self._connection.error(0.0) from None
            async with asyncio.TaskGroup() as group:
                self._tasks = group
                upkeep = (self._heartbeat, self._pending.store, self._forget_consumers)
                steps = (self._pull, self._reclaim, *upkeep)
                loops = {
                    step.__name__: group.create_task(self._connection.forever(step, self._give_up_in_time))
                    for step in steps
                }
                await self._stopping.wait()
                loops["_pull"].cancel()
                loops["_reclaim"].cancel()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._drain_s):
                        while self._held and self._given_up is None:
                            self._emptied.clear()
                            await self._emptied.wait()
                self._connection.closing = True
                for task in loops.values():
                    task.cancel()
                for entry in self._held.values():
                    if entry.task is not None:
                        entry.task.cancel()
            with contextlib.suppress(*REDIS_ERRORS, TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self._redis.leave({ref: entry.deliveries for ref, entry in self._held.items()})
        finally:
            await self._connection.close()
        if self._given_up is not None:
            raise self._given_up

    def _give_up_in_time(self) -> None:
        if (down_s := self._connection.down_s()) > self._patience_s:
            self._given_up = self._connection.error(down_s)
            self._stopping.set()

    async def _pull(self) -> None:
        await self._room.wait()
        if not self._has_groups:
            await self._redis.make_groups()
            self._has_groups = True
        with self._detect_lost_groups():
            for entry in await self._redis.pull():
                self._take(entry)

    @contextlib.contextmanager
    def _detect_lost_groups(self) -> Iterator[None]:
        """Start a new era if Redis lost its data, so that held entries are not stopped as deleted."""
        try:
            yield
        except exceptions.ResponseError as error:
            if not any(text in str(error) for text in GROUP_LOST):
                raise
            self._has_groups = False
            self._connection.era += 1

    async def _reclaim(self) -> None:
        """Take entries whose worker stopped sending heartbeats."""
        await asyncio.sleep(self._heartbeat_s * random.uniform(0.5, 1.0))
        with self._detect_lost_groups():
            for flavour in self.info.flavours if self._has_groups else ():
                cursor = ""
                while cursor != "0-0":
                    await self._room.wait()  # `_pull` waits for the same event and may have taken the room
                    held = {ref: entry.deliveries for ref, entry in self._held.items()}
                    cursor, entries = await self._redis.reclaim(flavour, self._claim_idle_s, cursor or "0-0", held)
                    self._counts["reclaimed"] += len(entries)
                    for entry in entries:
                        self._take(entry)

    def _take(self, entry: WorkerEntry) -> None:
        if entry.ref in self._held:
            return  # held already, and claimed again with others
        entry.era = self._connection.era
        self._held[entry.ref] = entry
        self._counts["entries"] += 1
        if entry.deliveries > self._max_deliveries:
            self._counts["poisoned"] += 1
            deaths = entry.deliveries - 1
            message = f"{deaths} workers died while they held the entry of this call. It is not retried."
            self._finish(entry, SandboxError(message, kind="fabric", retryable=False))
            return
        try:
            written = WrittenEntry(entry.blob)
        except WireError as error:
            self._finish(entry, SandboxError(str(error), kind="fabric", retryable=True))
            return
        entry.blob, entry.waiting = b"", set(written.ids)
        self._waiting += len(entry.waiting)
        self._update_room()
        assert self._tasks is not None
        entry.task = self._tasks.create_task(self._run(entry, written), name=f"entry {entry.ref}")

    async def _calls(self, entry: WorkerEntry, written: WrittenEntry) -> list[WireCall]:
        if not written.sizes:
            return written.calls()
        chunks = await self._connection.patiently(
            f"pieces of {entry.ref}",
            lambda: self._redis.get_chunks(entry.chunks, written.sizes),
            self._give_up_in_time,
        )
        return await asyncio.to_thread(written.calls, chunks)

    async def _run(self, entry: WorkerEntry, written: WrittenEntry) -> None:
        try:
            calls = await self._calls(entry, written)
        except WireError as error:
            self._finish(entry, SandboxError(str(error), kind="fabric", retryable=True))
            return
        # The entry's id has the time at which it was written, on the server's clock.
        server_now_s = asyncio.get_running_loop().time() + self._server_minus_loop_s
        age_s = server_now_s - id_order(entry.stream_id)[0] / 1000
        if entry.deliveries > 1 or age_s > LEASE_S:
            calls = await self._still_wanted(entry, calls)
        due = [call for call in calls if call.remaining_s is None or call.remaining_s > age_s]
        for call in calls:
            if call.remaining_s is not None and call.remaining_s <= age_s:
                self._counts["expired_calls"] += 1
                self._answer(entry, call.id, deadline_error())
        self._counts["calls"] += len(due)
        left_s = [math.inf if call.remaining_s is None else call.remaining_s - age_s for call in due]
        longest_s = max(left_s, default=0.0)
        deadline = None if longest_s == math.inf else asyncio.get_running_loop().time() + longest_s
        failure = SandboxError("the sandbox gave no outcome for this call", kind="fabric", retryable=True)
        try:
            if due:
                outcomes = self._sandbox.run_batch([call.request for call in due], deadline=deadline)
                async with contextlib.aclosing(cast(AsyncGenerator[tuple[int, Outcome]], outcomes)):
                    async for index, outcome in outcomes:
                        self._answer(entry, due[index].id, outcome)
        except SandboxError as error:
            failure = error
        self._finish(entry, failure)

    async def _still_wanted(self, entry: WorkerEntry, calls: list[WireCall]) -> list[WireCall]:
        """Return the unanswered calls of an entry that is old or had another worker: none if its client is
        dead, all if Redis does not answer."""
        try:
            stored = await self._redis.answered(entry.client, entry.ref)
        except REDIS_ERRORS:
            return calls
        ids = {call.id for call in calls}
        answered = ids if stored is None else ids & stored
        self._counts["orphaned_calls" if stored is None else "skipped_calls"] += len(answered)
        entry.partial = bool(stored)
        entry.waiting -= answered
        self._waiting -= len(answered)
        self._update_room()
        return [call for call in calls if call.id not in answered]

    def _answer(self, entry: WorkerEntry, call_id: int | None, outcome: Outcome) -> None:
        if call_id is not None:
            entry.waiting.discard(call_id)
            self._waiting -= 1
            self._update_room()
        self._pending.add(entry, call_id, outcome)
        if call_id is not None and not entry.waiting:
            self._complete(entry)

    def _complete(self, entry: WorkerEntry) -> None:
        """Acknowledge the entry with its last answer, even if its task is still running."""
        self._pending.complete(entry, is_held=self._held.get(entry.ref) is entry)

    def _finish(self, entry: WorkerEntry, failure: SandboxError) -> None:
        """Answer all remaining calls of the entry with `failure`."""
        if entry.task is None:
            self._answer(entry, None, failure)
        for call_id in sorted(entry.waiting):
            self._answer(entry, call_id, failure)
        self._complete(entry)

    def _release(self, entry: WorkerEntry) -> None:
        if self._held.pop(entry.ref, None) is not None:
            self._waiting -= len(entry.waiting)
            entry.waiting.clear()
            self._update_room()
            if not self._held:
                self._emptied.set()

    def _update_room(self) -> None:
        if self._waiting < self._limit:
            self._room.set()
        else:
            self._room.clear()

    async def _heartbeat(self) -> None:
        """Renew the lease, claim the held entries, and stop those that Redis no longer has."""
        loop = asyncio.get_running_loop()
        held = list(self._held.values())
        lease_end_s = loop.time() + self._server_minus_loop_s + 2 * self._claim_idle_s
        with self._detect_lost_groups():
            server_s, claimed = await self._redis.heartbeat(lease_end_s, [entry.ref for entry in held])
            self._server_minus_loop_s = server_s - loop.time()
            for entry in held:
                is_held = entry.ref in self._held and entry not in self._pending.finished
                # Deleted, not lost: its caller is gone, or another worker answered it.
                if entry.ref not in claimed and is_held and entry.era == self._connection.era:
                    self._counts["abandoned"] += 1
                    if entry.task is not None:
                        entry.task.cancel()
                    self._release(entry)
            if self._has_groups:
                self.ready.set()
        await asyncio.sleep(self._heartbeat_s)

    async def _forget_consumers(self) -> None:
        await asyncio.sleep(FORGET_EVERY_S * random.uniform(0.5, 1.0))
        with self._detect_lost_groups():
            await self._redis.forget_consumers()
