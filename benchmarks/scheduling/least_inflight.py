"""Least in-flight: a turn goes to the replica with the fewest turns running.

Source: verl's LLM server manager (least in-flight for a new trajectory, its later turns stay: `sticky`), and
NeMo-RL's generation router (every turn anew; its documentation says that this gives up prefix affinity).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rocstar.engine.scheduling.policies.routed import Routed
from rocstar.engine.scheduling.schedule_state import ScheduleState, TrajectoryEntry


@dataclass(slots=True)
class LeastInflight(Routed):
    """Tunables: `sticky`; `max_running` (see Routed)."""

    sticky: bool = True
    name: str = field(default="least_inflight", init=False)

    def route(self, turn: TrajectoryEntry, now: ScheduleState) -> int:
        if self.sticky and turn.home is not None:
            return turn.home
        return min(now.replicas.values(), key=lambda r: r.running + len(self._queues.get(r.replica, ()))).replica
