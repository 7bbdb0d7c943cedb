"""The replicas of a fleet: which are up, what takes one down, and how it comes back.

    up ──failures in a row | a turn that hangs | a publish not taken──> down ──restart, publish──> up
    up ──suspend──> suspended ──resume──> up

`publish` and `resume` wait for all replicas together; a revival waits for its restart, then for a publish
under way. Only turns wait for a replica that is down.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from rocstar.engine.inference.base import Inference, InferenceError
from rocstar.engine.inference.weights import WeightSource
from rocstar.engine.scheduling.events import Event, LoadSeen, ReplicaDown, ReplicaUp

Restart = Callable[[int], Awaitable[Inference]]
"""Brings replica i back and returns it, entered and empty; raises InferenceError if it could not."""

SendToAll = Callable[[Sequence[Inference], int, "WeightSource | None"], Awaitable[Sequence[InferenceError | None]]]
"""Brings weights to several replicas at once; for each, in order: None where it serves the version now."""

FIRST_BACKOFF_S, LAST_BACKOFF_S = 1.0, 60.0


class Suspendable(Inference, Protocol):
    """A replica that can be stopped on purpose."""

    async def suspend(self) -> None:
        """Stop. Running requests return as aborted, with the tokens so far."""

    async def resume(self, version: int, source: WeightSource | None) -> None:
        """Start again, from `source`, which it then serves as `version`. InferenceError if it cannot; it then
        may come back by a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """How much a replica, and a turn, may fail.

    Args:
        turn_timeout_s: a turn without an answer for so long means that its replica hangs.
        failures: failures in a row, no answered turn between them, until a replica is down (FailureCount).
        max_attempts: failures of one turn until it is given up; more than `failures`, so that one that is
            alone outlives its replica.
        max_lost: replicas that went down under it until then: it may be what kills them.
    """

    turn_timeout_s: float = 600.0
    publish_timeout_s: float = 300.0
    restart_timeout_s: float = 600.0
    load_period_s: float = 1.0
    failures: int = 12
    max_attempts: int = 24
    max_lost: int = 8


@dataclass(slots=True, kw_only=True)
class FleetCounts:
    """Counters since the start. `recomputed_tokens` were computed before on a replica that was lost."""

    replicas_lost: int = 0
    replicas_back: int = 0
    turns_continued: int = 0
    recomputed_tokens: int = 0
    publishes_failed: int = 0


@dataclass(slots=True)
class FailureCount:
    """The failures of a replica since it last answered a turn. Pure: no clock, no task.

    A server that fails a quarter of its calls must stay: it fails three in a row every hundred calls, and
    twelve in a row once in twenty million. Where everything fails, all that run there fail at once. But a
    call fails sooner than it is answered: of a hundred that begin together, twenty-five may fail before the
    first answer. So each that began since the last answer and may yet be answered outweighs a failure.

    A turn that fails again and again, among others that may yet be answered, counts once: it may be the
    cause itself. A turn is named by its trajectory, as in `Slot.running`.
    """

    _count: int = 0
    _failed: set[str] = field(default_factory=set)
    """Turns that failed since the last answer."""
    open: set[str] = field(default_factory=set)
    """Turns that began since the last answer and have not ended."""

    def answered(self) -> None:
        """A turn was answered: all before it is forgotten."""
        self._count = 0
        self._failed.clear()
        self.open.clear()

    def failed(self, turn: str, running: Iterable[str], *, is_only: bool) -> int:
        """A turn failed while others were `running` there. Returns the failures now.

        One turn counts once, unless nothing runs there that has not failed, too, or the replica `is_only`:
        the turn then cannot show elsewhere whose fault it is.
        """
        if turn not in self._failed or is_only or self.is_row(running):
            self._count += 1
        self._failed.add(turn)
        return self._count - len(self.open)

    def is_row(self, running: Iterable[str]) -> bool:
        """Whether all that run there have failed there since the last answer: none of them may break the row
        by itself."""
        return all(turn in self._failed for turn in running)


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """One replica's place. `running` can cut off, by trajectory, the turns that wait for it."""

    index: int
    replica: Inference
    up: bool = False
    failures: FailureCount = field(default_factory=FailureCount)
    version: int | None = None
    suspended: bool = False
    kv_peak: float = 0.0
    """Largest share of its pool that was reported in use; see `take_kv_peaks`."""
    running: dict[str, asyncio.Timeout] = field(default_factory=dict)


class Replicas:
    """Invariant: a replica that is up serves `version`, the last one published, or takes it just now."""

    def __init__(
        self,
        replicas: Sequence[Inference],
        *,
        limits: FleetLimits,
        restart: Restart | None,
        send_to_all: SendToAll | None = None,
        version: int = 0,
        tell: Callable[[Event], None],
        lost: Callable[[Slot], None],
    ) -> None:
        self.slots = [Slot(index=index, replica=replica) for index, replica in enumerate(replicas)]
        self.version = version
        self.counts = FleetCounts()
        self._limits, self._restart, self._send_to_all = limits, restart, send_to_all
        self._tell, self._lost = tell, lost
        self._source: WeightSource | None = None
        self._publishing = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._reviving: dict[int, asyncio.Task[None]] = {}
        self._any_up = asyncio.Event()
        self._reports: asyncio.Task[None] | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        for slot in self.slots:
            self._up(slot)
        self._reports = tasks.create_task(self._report_loads(), name="fleet-load")

    def stop(self) -> None:
        assert self._reports is not None
        for task in (self._reports, *self._reviving.values()):
            task.cancel()
        self._tasks = None

    @property
    def num_up(self) -> int:
        return sum(slot.up for slot in self.slots)

    @property
    def hopeless(self) -> bool:
        """All are down, and none will come back."""
        return self._restart is None and not any(slot.up or slot.suspended for slot in self.slots)

    def host_for(self, home: Slot, failures: Counter[int]) -> Slot | None:
        """Where a turn that failed at its home goes once, as the home is up; `failures` of it, by replica.

        None: nowhere. The home may be failing everything, and the next try there shows it; or the turn failed
        no less often on every other one that is as large.
        """
        if not home.up or home.failures.is_row(home.running):
            return None
        size, times = home.replica.load().total, failures[home.index]
        others = [
            slot
            for slot in self.slots
            if slot.up and failures[slot.index] < times and slot.replica.load().total >= size
        ]
        return min(others, key=lambda slot: (failures[slot.index], len(slot.running)), default=None)

    def down(self, slot: Slot) -> None:
        """Out of the fleet: cut its turns off, and have it brought back."""
        if not slot.up:
            return
        self.counts.replicas_lost += 1
        self._take_out(slot)
        now = asyncio.get_running_loop().time()
        for cut in slot.running.values():
            if not cut.expired():
                cut.reschedule(now)
        self._have_revived(slot)

    def _take_out(self, slot: Slot) -> None:
        slot.up = False
        if not self.num_up:
            self._any_up.clear()
        self._lost(slot)
        self._tell(ReplicaDown(replica=slot.index))

    def _have_revived(self, slot: Slot) -> None:
        if self._restart is not None and self._tasks is not None:
            revival = self._tasks.create_task(self._revive(slot, self._restart), name=f"revive-{slot.index}")
            self._reviving[slot.index] = revival

    async def wait_up(self, timeout_s: float) -> bool:
        """Wait until a replica is up; whether that came to be."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._any_up.wait()
        except TimeoutError:
            return False
        return True

    async def take_version(self, version: int, source: WeightSource | None, keep: WeightSource | None = None) -> None:
        """See `Inference.publish`; one that does not take the version is out of the fleet until it has it.

        `keep`: what one that comes back later takes, where `source` does not outlive the call.
        """
        async with self._publishing:
            if version <= self.version:
                raise ValueError(f"version {version} does not follow {self.version}")
            self.version, self._source = version, source
            up = [slot for slot in self.slots if slot.up]
            try:
                if self._send_to_all is not None:
                    taken = await self._take_together(up)
                else:
                    async with asyncio.TaskGroup() as tasks:
                        takes = [tasks.create_task(self._takes(slot)) for slot in up]
                    taken = [task.result() for task in takes]
            finally:
                self._source = source if keep is None else keep
            if not any(taken):
                raise InferenceError("publish_failed", f"no replica took version {version}", retryable=True)

    async def _take_together(self, slots: Sequence[Slot]) -> list[bool]:
        """Send weights by `send_to_all`; those that do not take the version are down."""
        assert self._send_to_all is not None
        failures: Sequence[Exception | None]
        try:
            async with asyncio.timeout(self._limits.publish_timeout_s):
                failures = await self._send_to_all([s.replica for s in slots], self.version, self._source)
        except (InferenceError, TimeoutError, OSError) as error:
            failures = [error] * len(slots)
        for slot, failure in zip(slots, failures, strict=True):
            if failure is None:
                slot.version = self.version
            else:
                self.counts.publishes_failed += 1
                self.down(slot)
        return [failure is None for failure in failures]

    async def _takes(self, slot: Slot) -> bool:
        """True if the replica serves the present version now; else it is down."""
        try:
            async with asyncio.timeout(self._limits.publish_timeout_s):
                await slot.replica.publish(self.version, self._source)
        except (InferenceError, TimeoutError, OSError):
            self.counts.publishes_failed += 1
            self.down(slot)
            return False
        slot.version = self.version
        return True

    async def suspend(self) -> None:
        """All out of the fleet and stopped, those that were coming back, too."""
        async with self._publishing:
            reviving = list(self._reviving.values())
            self._reviving.clear()
            for revival in reviving:
                revival.cancel()
            if reviving:
                await asyncio.wait(reviving)
            for slot in self.slots:
                slot.suspended = True
                if slot.up:
                    self._take_out(slot)
            async with asyncio.TaskGroup() as tasks:
                for slot in self.slots:
                    tasks.create_task(cast("Suspendable", slot.replica).suspend())

    async def resume(self, version: int, source: WeightSource | None) -> None:
        """Those that start from `source` are up; the others are brought back as after any failure.

        ValueError unless `version` is above the one before; InferenceError if none started.
        """
        async with self._publishing:
            if version <= self.version:
                raise ValueError(f"version {version} does not follow {self.version}")
            self.version, self._source = version, source
            async with asyncio.TaskGroup() as tasks:
                started = [tasks.create_task(self._resume(slot)) for slot in self.slots]
            if not any(task.result() for task in started):
                raise InferenceError("publish_failed", f"no replica started from version {version}", retryable=True)

    async def _resume(self, slot: Slot) -> bool:
        slot.suspended = False
        try:
            async with asyncio.timeout(self._limits.restart_timeout_s):
                await cast("Suspendable", slot.replica).resume(self.version, self._source)
        except (InferenceError, TimeoutError, OSError):
            self.counts.publishes_failed += 1
            self._have_revived(slot)
            return False
        self._up(slot)
        return True

    def _up(self, slot: Slot) -> None:
        slot.up, slot.version = True, self.version
        slot.failures.answered()
        self._any_up.set()
        self._tell(ReplicaUp(replica=slot.index, kv_tokens=slot.replica.load().total))

    async def _revive(self, slot: Slot, restart: Restart) -> None:
        """Restart until it works. A fresh replica takes the latest version before it is up."""
        backoff_s = FIRST_BACKOFF_S
        while not await self._brought_back(slot, restart):
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
        self._reviving.pop(slot.index, None)

    async def _brought_back(self, slot: Slot, restart: Restart) -> bool:
        try:
            async with asyncio.timeout(self._limits.restart_timeout_s):
                replica = await restart(slot.index)
        except (InferenceError, TimeoutError, OSError):
            return False
        if replica is not slot.replica:
            slot.replica, slot.version = replica, 0
        async with self._publishing:
            if slot.version != self.version and not await self._takes(slot):
                return False
            self.counts.replicas_back += 1
            self._up(slot)
        return True

    def take_kv_peaks(self) -> list[float]:
        """The largest share of each replica's KV pool that was reported in use since the last call."""
        peaks = [slot.kv_peak for slot in self.slots]
        for slot in self.slots:
            slot.kv_peak = 0.0
        return peaks

    async def _report_loads(self) -> None:
        while True:
            await asyncio.sleep(self._limits.load_period_s)
            for slot in self.slots:
                if slot.up:
                    load = slot.replica.load()
                    slot.kv_peak = max(slot.kv_peak, load.used / max(1, load.total))
                    seen = LoadSeen(
                        replica=slot.index, used_tokens=load.used, running=load.running, waiting=load.waiting
                    )
                    self._tell(seen)
