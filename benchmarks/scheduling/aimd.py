"""AIMD on KV usage: one cap on the trajectories in flight, moved by the reports of the replicas.

Source: prime-rl, src/prime_rl/orchestrator/concurrency.py (the version with a soft cap of 0.8 and a hard cap
of 0.9): grow per turnover while the engines are clear and the cap binds, tapering to nothing at the soft cap;
above it trim to in-flight x target / usage; cut on preemptions or on a queue that lasts. Not taken over: the
cancelling of the youngest work above the hard cap (here every trajectory must finish, so that it would only
be generated twice) and the growth gate's 15 s (there is no clock). Placement: least in-flight, then sticky.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstar.engine.scheduling.events import Command, Event, Grant, Left, LoadSeen, ReplicaUp, TurnReady
from rocstar.engine.scheduling.schedule_state import Phase, ScheduleState, TrajectoryEntry

BINDING_FRACTION = 0.9
TRIM_COOLDOWN_POLLS = 6
QUEUE_RATIO = 0.5
QUEUE_PERSISTENCE_POLLS = 6
QUEUE_CUT = 0.9
PREEMPTION_CUT = 0.8
ESCALATED_CUT = 0.5
ESCALATION_GRACE_POLLS = 6


@dataclass(slots=True)
class Aimd:
    """Tunables: `initial` trajectories in flight per replica (0 = the pool over the longest trajectory);
    `growth` per turnover at zero usage; `soft_cap`, `target` as shares of the pool."""

    initial: int = 0
    growth: float = 1.2
    soft_cap: float = 0.8
    target: float = 0.7
    name: str = field(default="aimd", init=False)
    _cap: float = field(default=0.0, init=False)
    _admitted: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    _queue: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    _can_grow: bool = field(default=False, init=False)
    _multiplier: float = field(default=1.0, init=False)
    _cooldown: int = field(default=0, init=False)
    _draining: bool = field(default=False, init=False)
    _escalated: bool = field(default=False, init=False)
    _grace: int = field(default=0, init=False)
    _queue_polls: int = field(default=0, init=False)
    _preemptions: int = field(default=0, init=False)
    _polled: set[int] = field(default_factory=set, init=False, repr=False)

    def decide(self, event: Event, subject: TrajectoryEntry | None, now: ScheduleState) -> Iterator[Command]:
        if isinstance(event, TurnReady):
            assert subject is not None
            if subject.phase is not Phase.ready:
                return
            if not self._cap:
                self._bootstrap(subject, now)
            self._queue[subject.traj] = None
            if subject.traj in self._admitted or len(self._queue) == 1:
                yield from self._admit(now, subject.traj)
        elif isinstance(event, Left):
            assert subject is not None
            self._queue.pop(subject.traj, None)
            if subject.traj in self._admitted:
                self._grow(len(self._admitted))
                del self._admitted[subject.traj]
            yield from self._admit(now)
        elif isinstance(event, LoadSeen):
            self._polled.add(event.replica)
            if len(self._polled) >= len(now.replicas):
                self._polled.clear()
                self._observe(now)
                yield from self._admit(now)
        elif isinstance(event, ReplicaUp):
            for traj in [traj for traj in self._queue if traj in self._admitted]:
                yield from self._admit(now, traj)
            yield from self._admit(now)

    def _bootstrap(self, first: TrajectoryEntry, now: ScheduleState) -> None:
        longest = first.prompt_tokens + first.max_tokens
        capacity = sum(replica.kv_tokens for replica in now.replicas.values())
        self._cap = float(self.initial * len(now.replicas) if self.initial else max(1, capacity // longest))

    def _admit(self, now: ScheduleState, first: str | None = None) -> Iterator[Command]:
        if first is not None and first in self._admitted:
            if now.replicas:
                del self._queue[first]
                yield self._place(now.ready[first], now)
            return
        while self._queue and now.replicas and len(self._admitted) < int(self._cap):
            traj = next(iter(self._queue))
            del self._queue[traj]
            if traj in now.ready and traj not in self._admitted:
                self._admitted[traj] = None
                yield self._place(now.ready[traj], now)

    def _place(self, turn: TrajectoryEntry, now: ScheduleState) -> Grant:
        if turn.home is not None:
            return Grant(traj=turn.traj, replica=turn.home)
        return Grant(traj=turn.traj, replica=min(now.replicas.values(), key=lambda r: r.running).replica)

    def _grow(self, inflight: int) -> None:
        if self._can_grow and inflight >= BINDING_FRACTION * int(self._cap):
            self._cap *= self._multiplier ** (1 / inflight)

    def _observe(self, now: ScheduleState) -> None:
        """One poll of every replica: gate growth, trim, cut."""
        replicas = list(now.replicas.values())
        usage = max((r.seen_used_tokens or 0) / r.kv_tokens for r in replicas)
        queued, running = sum(r.seen_waiting for r in replicas), sum(r.running for r in replicas)
        preemptions = sum(r.preemptions for r in replicas)
        preempted, self._preemptions = preemptions > self._preemptions, preemptions
        self._queue_polls = self._queue_polls + 1 if running and queued > QUEUE_RATIO * running else 0
        overload = self._queue_polls >= QUEUE_PERSISTENCE_POLLS
        inflight = len(self._admitted)
        if self._draining and inflight <= self._cap and not preempted and not overload:
            self._draining, self._grace = False, ESCALATION_GRACE_POLLS
        if not self._draining and self._escalated:
            self._grace -= 1
            self._escalated = self._grace > 0
        self._cooldown = max(0, self._cooldown - 1)
        clear = not preempted and not overload and usage <= self.soft_cap
        self._can_grow = clear and queued == 0 and not self._draining
        self._multiplier = 1.0 + (self.growth - 1.0) * max(0.0, 1.0 - usage / self.soft_cap)
        if self._draining or not self._cap:
            return
        if preempted or overload:
            fraction = ESCALATED_CUT if self._escalated else QUEUE_CUT if overload else PREEMPTION_CUT
            self._cap = max(1.0, min(self._cap, float(int(inflight * fraction))))
            self._queue_polls, self._draining, self._escalated = 0, True, True
        elif usage > self.soft_cap and inflight and not self._cooldown:
            self._cap = max(1.0, min(self._cap, float(int(inflight * self.target / usage))))
            self._cooldown = TRIM_COOLDOWN_POLLS
