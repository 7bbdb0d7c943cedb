"""A node's end of the fabric: takes entries as room frees, runs them, stores answers, then acknowledges.

    _pull    -- XREADGROUP, one entry at a time, while there is room --+
    _reclaim -- XAUTOCLAIM of entries whose worker fell silent --------+--> _run, a task per entry
                                                                                |  answers, as they come
    _heartbeat: lease in the registry, claim of what is held        Unstored.store: answers + XACK, one step
                what is gone from Redis is for nobody: stop it

`_pull` and `_reclaim` wait for room, `store` waits for answers, an entry's task waits for the sandbox. An
entry is held from its delivery until its last answer is stored. A heartbeat claims what is held, so a worker
that dies loses it to another after `claim_idle_s`.
"""

import asyncio
import contextlib
import math
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import cast

from rocstar.sandbox.fabric.client_commands import LEASE_S
from rocstar.sandbox.fabric.errors import deadline_error, poison_error
from rocstar.sandbox.fabric.held import Held, portable
from rocstar.sandbox.fabric.link import PREFIX, REDIS_ERRORS, Keys, Link, id_order, make_ref, unique_name
from rocstar.sandbox.fabric.stored_pieces import PiecesGone, StoredPieces
from rocstar.sandbox.fabric.unstored import Unstored
from rocstar.sandbox.fabric.window import spare_calls
from rocstar.sandbox.fabric.wire import Outcome, WireCall, WireError, WrittenEntry
from rocstar.sandbox.fabric.worker_commands import Delivery, GroupGone, WorkerCommands
from rocstar.sandbox.fabric.workers import WorkerInfo
from rocstar.sandbox.types import BatchSandbox, SandboxError

COUNTERS = (
    *("entries", "calls", "reclaimed", "skipped_calls", "orphaned_calls"),
    *("expired_calls", "abandoned", "poisoned"),
)

FORGET_EVERY_S = 30.0
STOP_TIMEOUT_S = 2.0


class RedisWorker:
    """Runs calls from Redis on `sandbox`. `await worker.run()` ends after `stop()`, by cancellation, or with
    SandboxError of kind `fabric` when Redis did not answer for `patience_s`.

    Args:
        capacity: programs the sandbox runs at a time.
        prefetch: calls held beyond those, so that the sandbox does not wait for Redis (default: capacity,
            and the places that owners with nothing under way find besides).
        heartbeat_s: how often held entries are claimed.
        claim_idle_s: how long a worker may be silent before another takes its entries.
        max_deliveries: an entry whose workers died this often is answered with an error.
        store_s: how long an answer waits for others to travel with.
        drain_s: how long `stop` lets running programs go on.

    Invariants: an entry is acknowledged in the same step that stores its last answer, never before; an entry
    is pulled only while fewer than capacity + prefetch calls are waiting here.
    """

    def __init__(
        self,
        url: str | Link,
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
            raise ValueError(f"heartbeat_s={heartbeat_s} must lie between 0 and claim_idle_s={claim_idle_s}")
        self.info = WorkerInfo(
            name=name or unique_name(), capacity=capacity, flavours=tuple(dict.fromkeys(flavours))
        )
        self._link = url if isinstance(url, Link) else Link(url)
        keys = Keys(prefix)
        self._redis = WorkerCommands(self._link, keys, self.info)
        self._stored = StoredPieces(self._link, keys)
        self._sandbox = sandbox
        self._limit = capacity + (capacity + spare_calls(capacity) if prefetch is None else prefetch)
        self._heartbeat_s = heartbeat_s
        self._claim_idle_s = claim_idle_s
        self._max_deliveries = max_deliveries
        self._patience_s = patience_s
        self._drain_s = drain_s
        self._held: dict[str, Held] = {}
        self._unstored = Unstored(
            self._redis, self._stored, self._release, worker=self.info.name, store_s=store_s
        )
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

    @property
    def held_calls(self) -> int:
        """Calls taken from Redis that have no answer yet."""
        return self._waiting

    def counters(self) -> Mapping[str, int]:
        """Since the start: `entries`, `calls`, `reclaimed` entries of other workers, `skipped_calls` that a
        dead worker had answered, `orphaned_calls` of dead clients, `expired_calls`, `abandoned` and
        `poisoned` entries, `reconnects`."""
        return {**dict.fromkeys(COUNTERS, 0), **self._counts, "reconnects": self._link.reconnects}

    def stop(self) -> bool:
        """Takes nothing more; `run` returns when what is held is answered, or handed back after `drain_s`.
        False when it was stopping already."""
        was_stopping = self._stopping.is_set()
        self._stopping.set()
        return not was_stopping

    async def run(self) -> None:
        """Works until `stop`."""
        try:
            await self._link.open(self._patience_s)
            await self._start()
            async with asyncio.TaskGroup() as group:
                self._tasks = group
                upkeep = (self._heartbeat, self._unstored.store, self._forget_consumers)
                steps = (self._pull, self._reclaim, *upkeep)
                loops = {
                    step.__name__: group.create_task(self._link.forever(step, self._give_up_in_time))
                    for step in steps
                }
                await self._stopping.wait()
                loops["_pull"].cancel()
                loops["_reclaim"].cancel()
                await self._drain()
                self._link.closing = True
                for task in loops.values():
                    task.cancel()
                for entry in self._held.values():
                    if entry.task is not None:
                        entry.task.cancel()
            await self._leave()
        finally:
            await self._link.close()
        if self._given_up is not None:
            raise self._given_up

    def _give_up_in_time(self) -> None:
        if (down_s := self._link.down_s()) > self._patience_s:
            self._given_up = self._link.error(down_s)
            self._stopping.set()

    async def _start(self) -> None:
        """Learns Redis's clock before anything is measured by it."""
        try:
            self._server_minus_loop_s = await self._redis.server_s() - asyncio.get_running_loop().time()
        except REDIS_ERRORS as error:
            self._link.failed("start", error)
            raise self._link.error(0.0) from None

    async def _pull(self) -> None:
        await self._room.wait()
        if not self._has_groups:
            await self._redis.make_groups()
            self._has_groups = True
        with self._groups_may_be_gone():
            for delivery in await self._redis.pull():
                self._take(delivery)

    @contextlib.contextmanager
    def _groups_may_be_gone(self) -> Iterator[None]:
        """What we hold of a Redis that lost its data is not stopped because Redis no longer has it."""
        try:
            yield
        except GroupGone:
            self._has_groups = False
            self._link.era += 1

    async def _reclaim(self) -> None:
        """Entries whose worker fell silent."""
        await asyncio.sleep(self._heartbeat_s * random.uniform(0.5, 1.0))
        with self._groups_may_be_gone():
            for flavour in self.info.flavours if self._has_groups else ():
                cursor = ""
                while cursor != "0-0":
                    await self._room.wait()  # woken together with `_pull`, which under load leaves none
                    held = {ref: entry.deliveries for ref, entry in self._held.items()}
                    cursor, deliveries = await self._redis.reclaim(
                        flavour, self._claim_idle_s, cursor or "0-0", held
                    )
                    self._counts["reclaimed"] += len(deliveries)
                    for delivery in deliveries:
                        self._take(delivery)

    def _take(self, delivery: Delivery) -> None:
        if make_ref(delivery.flavour, delivery.stream_id) in self._held:
            return  # our own, taken up while others were claimed
        entry = Held(
            flavour=delivery.flavour,
            stream_id=delivery.stream_id,
            client=delivery.client,
            pieces=delivery.pieces,
            deliveries=delivery.deliveries,
            era=self._link.era,
        )
        self._held[entry.ref] = entry
        self._counts["entries"] += 1
        if entry.deliveries > self._max_deliveries:
            self._counts["poisoned"] += 1
            self._finish(entry, poison_error(entry.deliveries - 1))
            return
        try:
            written = WrittenEntry(delivery.blob)
        except WireError as error:
            self._finish(entry, SandboxError(str(error), kind="fabric", retryable=True))
            return
        entry.waiting = set(written.ids)
        self._waiting += len(entry.waiting)
        self._update_room()
        assert self._tasks is not None
        entry.task = self._tasks.create_task(self._read_and_run(entry, written), name=f"entry {entry.ref}")

    async def _read_and_run(self, entry: Held, written: WrittenEntry) -> None:
        try:
            calls = await self._calls(entry, written)
        except (WireError, PiecesGone) as error:
            self._finish(entry, SandboxError(str(error), kind="fabric", retryable=True))
        else:
            await self._run(entry, calls)

    async def _calls(self, entry: Held, written: WrittenEntry) -> list[WireCall]:
        if not written.sizes:
            return written.calls()
        pieces = await self._link.patiently(
            f"pieces of {entry.ref}",
            lambda: self._stored.get(entry.pieces, written.sizes),
            self._give_up_in_time,
        )
        return await asyncio.to_thread(written.calls, pieces)

    async def _run(self, entry: Held, calls: list[WireCall]) -> None:
        age_s = self._age_s(entry)
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
                        self._answer(entry, due[index].id, portable(outcome))
        except SandboxError as error:
            failure = error
        self._finish(entry, failure)

    async def _still_wanted(self, entry: Held, calls: list[WireCall]) -> list[WireCall]:
        """Return the calls of an entry that is old or had another worker which nobody answered: none if its
        client is dead, all if Redis cannot say."""
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

    def _age_s(self, entry: Held) -> float:
        """How long ago the entry was written, by the server's clock, which alone its id knows."""
        now_s = asyncio.get_running_loop().time() + self._server_minus_loop_s
        return now_s - id_order(entry.stream_id)[0] / 1000

    def _answer(self, entry: Held, call_id: int | None, outcome: Outcome) -> None:
        if call_id is not None:
            entry.waiting.discard(call_id)
            self._waiting -= 1
            self._update_room()
        self._unstored.add(entry, call_id, outcome)
        if call_id is not None and not entry.waiting:
            self._complete(entry)

    def _complete(self, entry: Held) -> None:
        """It is acknowledged with its last answer, whenever its task then ends."""
        self._unstored.complete(entry, is_held=self._held.get(entry.ref) is entry)

    def _finish(self, entry: Held, failure: SandboxError) -> None:
        """Nothing more will come: calls without an answer get `failure`."""
        if entry.task is None:
            self._answer(entry, None, failure)
        for call_id in sorted(entry.waiting):
            self._answer(entry, call_id, portable(failure))
        self._complete(entry)

    def _is_for_nobody(self, entry: Held) -> bool:
        """Say whether Redis no longer has an entry: deleted, neither acknowledged just now nor lost."""
        return entry.ref in self._held and not self._unstored.completes(entry) and entry.era == self._link.era

    def _abandon(self, entry: Held) -> None:
        """The caller has gone, or another worker was quicker."""
        self._counts["abandoned"] += 1
        if entry.task is not None:
            entry.task.cancel()
        self._release(entry)

    def _release(self, entry: Held) -> None:
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
        """Says that this worker lives and keeps what it holds; stops what Redis no longer has."""
        loop = asyncio.get_running_loop()
        held = list(self._held.values())
        lease_end_s = loop.time() + self._server_minus_loop_s + 2 * self._claim_idle_s
        with self._groups_may_be_gone():
            server_s, claimed = await self._redis.heartbeat(lease_end_s, [entry.ref for entry in held])
            self._server_minus_loop_s = server_s - loop.time()
            for entry in held:
                if entry.ref not in claimed and self._is_for_nobody(entry):
                    self._abandon(entry)
            if self._has_groups:
                self.ready.set()
        await asyncio.sleep(self._heartbeat_s)

    async def _forget_consumers(self) -> None:
        await asyncio.sleep(FORGET_EVERY_S * random.uniform(0.5, 1.0))
        with self._groups_may_be_gone():
            await self._redis.forget_consumers()

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                while self._held and self._given_up is None:
                    self._emptied.clear()
                    await self._emptied.wait()

    async def _leave(self) -> None:
        with contextlib.suppress(*REDIS_ERRORS, TimeoutError, GroupGone):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._redis.leave({ref: entry.deliveries for ref, entry in self._held.items()})
