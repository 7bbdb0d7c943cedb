"""Least in-flight: a turn goes to the replica with the fewest turns running.

Source: verl's LLM server manager (least in-flight for a new trajectory, later turns stay: `sticky`), and
NeMo-RL's generation router (every turn anew; its documentation says that this gives up prefix affinity).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstar.engine.scheduling.events import Command, Event, Grant
from rocstar.engine.scheduling.observation import Observation, TrajectoryView


@dataclass(slots=True)
class LeastInflight:
    """Tunables: `sticky`; `max_running`, turns granted per replica at a time (0 = no bound)."""

    sticky: bool = True
    max_running: int = 0
    name: str = field(default="least_inflight", init=False)

    def decide(self, event: Event, subject: TrajectoryView | None, now: Observation) -> Iterator[Command]:
        for waiting in list(now.ready.values()):
            room = [r for r in now.replicas.values() if not self.max_running or r.running < self.max_running]
            if not room:
                return
            if self.sticky and waiting.home is not None:
                room = [r for r in room if r.replica == waiting.home]
            if room:
                yield Grant(traj=waiting.traj, replica=min(room, key=lambda r: r.running).replica)
