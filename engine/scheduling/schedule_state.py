"""The state of the scheduler: past and present of every trajectory and replica, never a future length.

Policies read it, and only the scheduler changes it. A policy keeps its own sums if it needs another key; its
decisions depend only on the sequence of events.

Invariant: every trajectory is in exactly one phase; it is in `ready` iff its phase is ready; a running one
lives on an up replica; a replica's resident tokens are the sum of the contexts of the trajectories that live
there, and each trajectory lives on at most one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from rocstar.engine.scheduling.events import Command, Event, Submitted


class Phase(Enum):
    """The phase of a trajectory. `tool` is between two turns."""

    new = "new"
    ready = "ready"
    running = "running"
    tool = "tool"


class ScheduleError(ValueError):
    """A host sent an event, or a policy a command, that the state does not allow."""


@dataclass(slots=True, kw_only=True, eq=False)
class TrajectoryEntry:
    """One trajectory. `order` counts submissions; `turns` counts completions that ended."""

    traj: str
    group: str
    stage: str
    order: int
    prompt_tokens: int
    max_tokens: int
    context_tokens: int
    """All tokens that are known of; those of a turn that runs are not, unless it was preempted."""
    turn_context_tokens: int
    """The context that its present turn was asked with."""
    turns: int = 0
    phase: Phase = Phase.new
    home: int | None = None
    """The replica that holds its KV: where it runs, or ran last."""


@dataclass(slots=True, kw_only=True, eq=False)
class ReplicaEntry:
    """One replica. `resident_tokens` is the sum of the known contexts of the trajectories that live there."""

    replica: int
    kv_tokens: int
    resident_tokens: int = 0
    running: int = 0
    """Grants that have not ended."""
    preemptions: int = 0
    seen_used_tokens: int | None = None
    """Tokens in use by the replica's own last report; None before the first."""
    seen_waiting: int = 0
    trajectories: dict[str, TrajectoryEntry] = field(default_factory=dict)
    """Trajectories with KV here, in order of arrival."""


class ScheduleState:
    """Everything that is known now; only the scheduler changes it."""

    def __init__(self) -> None:
        self.replicas: dict[int, ReplicaEntry] = {}
        """The replicas that are up, in the order in which they came."""
        self.trajectories: dict[str, TrajectoryEntry] = {}
        """Every trajectory that has not left, in order of submission."""
        self.ready: dict[str, TrajectoryEntry] = {}
        """Those that want a turn and have no grant, the longest-waiting first."""
        self.num_running = 0
        self.pools: dict[int, int] = {}
        """KV tokens of every replica ever seen: one that is down may come back."""
        self.largest_pool: int | None = None
        self._submitted = 0

    def add(self, event: Submitted) -> TrajectoryEntry:
        if event.traj in self.trajectories:
            raise ScheduleError(f"{event.traj!r} was submitted already")
        if event.prompt_tokens < 1 or event.max_tokens < 1:
            raise ScheduleError(f"{event.traj!r}: {event.prompt_tokens} + {event.max_tokens} tokens")
        self._submitted += 1
        entry = TrajectoryEntry(
            traj=event.traj,
            group=event.group,
            stage=event.stage,
            order=self._submitted,
            prompt_tokens=event.prompt_tokens,
            max_tokens=event.max_tokens,
            context_tokens=event.prompt_tokens,
            turn_context_tokens=event.prompt_tokens,
        )
        self.trajectories[event.traj] = entry
        return entry

    def entry(self, traj: str, phases: tuple[Phase, ...]) -> TrajectoryEntry:
        """The trajectory, which must be in one of `phases`."""
        entry = self.trajectories.get(traj)
        if entry is None:
            raise ScheduleError(f"{traj!r} is not known: it was never submitted, or has left")
        if entry.phase not in phases:
            raise ScheduleError(f"{traj!r} is {entry.phase.value}, not {' or '.join(p.value for p in phases)}")
        return entry

    def replica(self, replica: int) -> ReplicaEntry:
        found = self.replicas.get(replica)
        if found is None:
            raise ScheduleError(f"replica {replica} is not up")
        return found

    def up(self, replica: int, kv_tokens: int) -> None:
        self.pools[replica] = kv_tokens
        self.largest_pool = max(self.pools.values())
        self.replicas[replica] = ReplicaEntry(replica=replica, kv_tokens=kv_tokens)

    def grow(self, entry: TrajectoryEntry, context_tokens: int) -> None:
        if context_tokens < entry.context_tokens:
            raise ScheduleError(f"{entry.traj!r} shrank from {entry.context_tokens} to {context_tokens} tokens")
        if entry.home is not None:
            self.replicas[entry.home].resident_tokens += context_tokens - entry.context_tokens
        entry.context_tokens = context_tokens

    def move(self, entry: TrajectoryEntry, home: int | None) -> None:
        """Set the replica of its KV to `home`."""
        if entry.home is not None and entry.home != home:
            left = self.replicas[entry.home]
            del left.trajectories[entry.traj]
            left.resident_tokens -= entry.context_tokens
        if home is not None and entry.home != home:
            joined = self.replicas[home]
            joined.trajectories[entry.traj] = entry
            joined.resident_tokens += entry.context_tokens
        entry.home = home

    def enter(self, entry: TrajectoryEntry, phase: Phase) -> None:
        if entry.phase is Phase.running:
            assert entry.home is not None
            self.replicas[entry.home].running -= 1
            self.num_running -= 1
        elif entry.phase is Phase.ready:
            del self.ready[entry.traj]
        if phase is Phase.running:
            assert entry.home is not None
            self.replicas[entry.home].running += 1
            self.num_running += 1
        elif phase is Phase.ready:
            self.ready[entry.traj] = entry
        entry.phase = phase

    def remove(self, entry: TrajectoryEntry) -> None:
        """Forget it. Its `home` stays readable."""
        home = entry.home
        self.enter(entry, Phase.tool)
        self.move(entry, None)
        entry.home = home
        del self.trajectories[entry.traj]


class SchedulingPolicy(Protocol):
    """Decides who runs where. `decide` is called once per event, after the state took it in.

    Each command is applied before the next one is asked for, so a generator sees its own effects in `now`.
    `subject` is the trajectory that the event names (after Left: as it was when it left), else None.
    A policy need not break a standstill: the scheduler does.
    """

    @property
    def name(self) -> str: ...

    def decide(self, event: Event, subject: TrajectoryEntry | None, now: ScheduleState) -> Iterable[Command]: ...
