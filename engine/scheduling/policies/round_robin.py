"""Round robin: each new trajectory (or turn) goes to the next replica.

Source: AReaL's remote inference engine, whose only schedule policy is "round_robin", with the turns of one
request id kept on one server so that its prefix is reused (`sticky`). Loads are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstar.engine.scheduling.events import Command, Event, Grant
from rocstar.engine.scheduling.observation import Observation, TrajectoryView


@dataclass(slots=True)
class RoundRobin:
    """Tunables: `sticky`; `max_running`, turns granted per replica at a time (0 = no bound)."""

    sticky: bool = True
    max_running: int = 0
    name: str = field(default="round_robin", init=False)
    _next: int = field(default=0, init=False)

    def decide(self, event: Event, subject: TrajectoryView | None, now: Observation) -> Iterator[Command]:
        for waiting in list(now.ready.values()):
            room = [
                r.replica
                for r in now.replicas.values()
                if not self.max_running or r.running < self.max_running
            ]
            if not room:
                return
            replica = waiting.home
            if replica is None or not self.sticky:
                replica = room[self._next % len(room)]
                self._next += 1
            elif replica not in room:
                continue
            yield Grant(traj=waiting.traj, replica=replica)
