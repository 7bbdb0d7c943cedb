"""Sticky hash: a trajectory's replica follows from a hash of its name, on a ring of virtual nodes.

Source: consistent hashing as prime-rl (X-Session-ID), slime (X-SMG-Routing-Key) and SGLang's router offer it.
A replica that goes moves only its own trajectories. It never looks at load (prime-rl PR#3255: one engine at a
5% prefix hit rate while three idled).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from hashlib import blake2b

from rocstar.engine.scheduling.policies.routed import Routed
from rocstar.engine.scheduling.schedule_state import ScheduleState, TrajectoryEntry


def _point(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


@dataclass(slots=True)
class Sticky(Routed):
    """Tunables: `by_group` hashes the group, so that siblings share their prompt's prefix; `nodes` per
    replica on the ring; `max_running` (see Routed)."""

    by_group: bool = False
    nodes: int = 128
    name: str = field(default="sticky", init=False)
    _members: tuple[int, ...] = field(default=(), init=False, repr=False)
    _ring: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False)

    def route(self, turn: TrajectoryEntry, now: ScheduleState) -> int:
        members = tuple(now.replicas)
        if members != self._members:
            self._members = members
            self._ring = sorted((_point(f"{r}#{k}"), r) for r in members for k in range(self.nodes))
        at = bisect.bisect(self._ring, (_point(turn.group if self.by_group else turn.traj), 0))
        return self._ring[at % len(self._ring)][1]
