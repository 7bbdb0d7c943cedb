"""The replicas of a fleet: which are up, what takes one down, and how it comes back.

    up ──strikes in a row | a turn that hangs | a publish not taken──> down ──restart, publish──> up

Who waits: `publish` for all replicas at once; a revival for its restart, then for a publish under way. Nobody
waits for a replica that is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rocstar.engine.inference.base import Inference, InferenceError
from rocstar.engine.scheduling.events import Event, ReplicaDown, ReplicaUp

Restart = Callable[[int], Awaitable[Inference]]
"""Brings replica i back and returns it, entered and empty; raises InferenceError if it could not."""

FIRST_BACKOFF_S, LAST_BACKOFF_S = 1.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """turn_timeout_s: a turn without an answer for so long means that its replica hangs.
    strikes: failures in a row, without an answered turn between them, until a replica is down.
    max_attempts: of one turn, until it fails: it may be what kills the replicas."""

    turn_timeout_s: float = 600.0
    publish_timeout_s: float = 300.0
    restart_timeout_s: float = 600.0
    load_period_s: float = 1.0
    strikes: int = 3
    max_attempts: int = 8


@dataclass(slots=True, kw_only=True)
class FleetCounts:
    """What happened since the start. `recomputed_tokens` had been computed on a replica that was lost."""

    replicas_lost: int = 0
    replicas_back: int = 0
    turns_continued: int = 0
    recomputed_tokens: int = 0
    publishes_failed: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """One replica's place. `running` can cut off, by trajectory, the turns that wait for it."""

    index: int
    replica: Inference
    up: bool = False
    strikes: int = 0
    version: int | None = None
    running: dict[str, asyncio.Timeout] = field(default_factory=dict)


class Replicas:
    """Invariant: a replica that is up serves `version`, the last one published, or takes it just now."""

    def __init__(
        self,
        replicas: Sequence[Inference],
        *,
        limits: FleetLimits,
        restart: Restart | None,
        tell: Callable[[Event], None],
        lost: Callable[[int], None],
    ) -> None:
        self.slots = [Slot(index=index, replica=replica) for index, replica in enumerate(replicas)]
        self.version = 0
        self.counts = FleetCounts()
        self._limits, self._restart, self._tell, self._lost = limits, restart, tell, lost
        self._source: Any = None
        self._publishing = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._reviving: dict[int, asyncio.Task[None]] = {}

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        for slot in self.slots:
            self._up(slot)

    def stop(self) -> None:
        for task in self._reviving.values():
            task.cancel()
        self._tasks = None

    @property
    def num_up(self) -> int:
        return sum(slot.up for slot in self.slots)

    @property
    def hopeless(self) -> bool:
        """All are down, and none will come back."""
        return self._restart is None and not self.num_up

    def strike(self, slot: Slot) -> None:
        """A turn failed there."""
        slot.strikes += 1
        if slot.strikes >= self._limits.strikes:
            self.down(slot)

    def down(self, slot: Slot) -> None:
        """Out of the fleet: cut its turns off, and have it brought back."""
        if not slot.up:
            return
        slot.up = False
        self.counts.replicas_lost += 1
        now = asyncio.get_running_loop().time()
        for cut in slot.running.values():
            if not cut.expired():
                cut.reschedule(now)
        self._lost(slot.index)
        self._tell(ReplicaDown(replica=slot.index))
        if self._restart is not None and self._tasks is not None:
            revival = self._tasks.create_task(self._revive(slot, self._restart), name=f"revive-{slot.index}")
            self._reviving[slot.index] = revival

    async def publish(self, version: int, source: Any) -> None:
        """See `Inference.publish`; one that does not take the version is out of the fleet until it has it."""
        async with self._publishing:
            if version <= self.version:
                raise ValueError(f"version {version} does not follow {self.version}")
            self.version, self._source = version, source
            async with asyncio.TaskGroup() as tasks:
                taken = [tasks.create_task(self._publish_to(slot)) for slot in self.slots if slot.up]
            if not any(task.result() for task in taken):
                raise InferenceError("publish_failed", f"no replica took version {version}", retryable=True)

    async def _publish_to(self, slot: Slot) -> bool:
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

    def _up(self, slot: Slot) -> None:
        slot.up, slot.strikes, slot.version = True, 0, self.version
        self._tell(ReplicaUp(replica=slot.index, kv_tokens=slot.replica.load().total))

    async def _revive(self, slot: Slot, restart: Restart) -> None:
        """Restart until it works. A fresh replica takes the latest version before it is up."""
        backoff_s = FIRST_BACKOFF_S
        while not await self._brought_back(slot, restart):
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
        del self._reviving[slot.index]

    async def _brought_back(self, slot: Slot, restart: Restart) -> bool:
        try:
            async with asyncio.timeout(self._limits.restart_timeout_s):
                replica = await restart(slot.index)
        except (InferenceError, TimeoutError, OSError):
            return False
        if replica is not slot.replica:
            slot.replica, slot.version = replica, 0
        async with self._publishing:
            if slot.version != self.version and not await self._publish_to(slot):
                return False
            self.counts.replicas_back += 1
            self._up(slot)
        return True
