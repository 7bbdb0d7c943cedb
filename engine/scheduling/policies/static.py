"""Static split: the batch is cut into equal shares of whole groups, one share per replica, for good.

Source: the arrangement that the rStar2-Agent report (arXiv 2508.20722, section 3.2, figure 7) starts from: N
rollouts per GPU; as verl's synchronous workers do, which chunk the batch over the replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rocstar.engine.scheduling.observation import Observation, TrajectoryView
from rocstar.engine.scheduling.policies.routed import Routed


@dataclass(slots=True)
class Static(Routed):
    """Tunable: `max_running` (see Routed). Groups are dealt out in the order of their first turn."""

    name: str = field(default="static", init=False)
    _share: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def route(self, turn: TrajectoryView, now: Observation) -> int:
        if turn.home is not None:
            return turn.home
        share = self._share.setdefault(turn.group, len(self._share))
        return list(now.replicas)[share % len(now.replicas)]
