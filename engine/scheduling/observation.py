"""The view of a policy: past and present of every trajectory and replica, never a future length.

The types are read-only views of the scheduler's ledger. A policy keeps its own sums if it needs
another key; its decisions depend only on the sequence of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Protocol

from rocstar.engine.scheduling.events import Command, Event


class Phase(Enum):
    """The phase of a trajectory. `tool` is between two turns."""

    new = "new"
    ready = "ready"
    running = "running"
    tool = "tool"


class TrajectoryView(Protocol):
    """One trajectory. `order` counts submissions; `turns` counts completions that ended."""

    @property
    def traj(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def order(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def context_tokens(self) -> int:
        """All tokens that are known of; those of a turn that runs are not, unless it was preempted."""
        ...

    @property
    def turns(self) -> int: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def home(self) -> int | None:
        """The replica that holds its KV: where it runs, or ran last."""
        ...


class ReplicaView(Protocol):
    """One replica. `resident_tokens` is the sum of the known contexts of the trajectories that live there."""

    @property
    def replica(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def resident_tokens(self) -> int: ...
    @property
    def running(self) -> int:
        """Grants that have not ended."""
        ...

    @property
    def preemptions(self) -> int: ...
    @property
    def seen_used_tokens(self) -> int | None:
        """Tokens in use by the replica's own last report; None before the first."""
        ...

    @property
    def seen_waiting(self) -> int: ...
    @property
    def trajectories(self) -> Mapping[str, TrajectoryView]:
        """Trajectories with KV here, in order of arrival."""
        ...


class Observation(Protocol):
    """Everything that is known now."""

    @property
    def replicas(self) -> Mapping[int, ReplicaView]:
        """The replicas that are up, in the order in which they came."""
        ...

    @property
    def trajectories(self) -> Mapping[str, TrajectoryView]:
        """Every trajectory that has not left, in order of submission."""
        ...

    @property
    def ready(self) -> Mapping[str, TrajectoryView]:
        """Those that want a turn and have no grant, the longest-waiting first."""
        ...


class Policy(Protocol):
    """Decides who runs where. `decide` is called once per event, after the ledger took it in.

    Each command is applied before the next one is asked for, so a generator sees its own effects in `now`.
    `subject` is the trajectory that the event names (after Left: as it was when it left), else None.
    A policy need not break a standstill: the scheduler does.
    """

    @property
    def name(self) -> str: ...

    def decide(self, event: Event, subject: TrajectoryView | None, now: Observation) -> Iterable[Command]: ...
