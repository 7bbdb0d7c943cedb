"""Round robin: each new trajectory (or turn) goes to the next replica; loads are never looked at.

Source: AReaL's remote inference engine, whose only schedule policy is "round_robin", with the turns of one
request id kept on one server so that its prefix is reused (`sticky`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rocstar.engine.scheduling.observation import Observation, TrajectoryView
from rocstar.engine.scheduling.policies.routed import Routed


@dataclass(slots=True)
class RoundRobin(Routed):
    """Tunables: `sticky`; `max_running` (see Routed)."""

    sticky: bool = True
    name: str = field(default="round_robin", init=False)
    _next: int = field(default=0, init=False, repr=False)

    def route(self, turn: TrajectoryView, now: Observation) -> int:
        if self.sticky and turn.home is not None:
            return turn.home
        self._next += 1
        return list(now.replicas)[(self._next - 1) % len(now.replicas)]
