"""Worst-case reservation: a trajectory is admitted where prompt + limit tokens are unreserved, and keeps them
until it leaves.

Source: the rule that rStar2-Agent's pre-release history holds (rStar2AgentAsyncLLMServerManager): the budget
of a server is its KV tokens over `budget_coef`; a new trajectory goes to the server with the most unreserved
tokens, or waits; all its turns stay there. The original polls every 0.1 s and leaks the reservation of a
trajectory that fails; here it looks after every event, and the reservation ends with the trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstar.engine.scheduling.events import Command, Event, Grant, Left, ReplicaDown, ReplicaUp, TurnReady
from rocstar.engine.scheduling.schedule_state import Phase, ScheduleState, TrajectoryEntry


@dataclass(slots=True)
class Reserve:
    """Tunable: `budget_coef`; below 1 it overcommits the pool, above 1 it leaves room."""

    budget_coef: float = 1.0
    name: str = field(default="reserve", init=False)
    _reserved: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _held: dict[str, tuple[int, int]] = field(default_factory=dict, init=False, repr=False)
    _queue: dict[str, None] = field(default_factory=dict, init=False, repr=False)

    def decide(self, event: Event, subject: TrajectoryEntry | None, now: ScheduleState) -> Iterator[Command]:
        if isinstance(event, TurnReady):
            assert subject is not None
            if subject.phase is not Phase.ready:
                return
            if subject.traj in self._held:
                yield Grant(traj=subject.traj, replica=self._held[subject.traj][0])
            else:
                self._queue[subject.traj] = None
                if len(self._queue) == 1:
                    yield from self._admit(now)
        elif isinstance(event, Left):
            assert subject is not None
            self._queue.pop(subject.traj, None)
            self._release(subject.traj)
            yield from self._admit(now)
        elif isinstance(event, ReplicaDown):
            for traj in [traj for traj, (replica, _) in self._held.items() if replica == event.replica]:
                self._release(traj)
            del self._reserved[event.replica]
        elif isinstance(event, ReplicaUp):
            self._reserved[event.replica] = 0
            yield from self._admit(now)

    def _admit(self, now: ScheduleState) -> Iterator[Command]:
        while self._queue:
            traj = next(iter(self._queue))
            turn = now.ready.get(traj)
            if turn is None or traj in self._held:
                del self._queue[traj]
                continue
            need = turn.prompt_tokens + turn.max_tokens
            free, replica = max(
                (
                    (r.kv_tokens / self.budget_coef - self._reserved[r.replica], r.replica)
                    for r in now.replicas.values()
                ),
                default=(0.0, -1),
            )
            if free < need:
                return
            del self._queue[traj]
            self._held[traj] = (replica, need)
            self._reserved[replica] += need
            yield Grant(traj=traj, replica=replica)

    def _release(self, traj: str) -> None:
        if held := self._held.pop(traj, None):
            self._reserved[held[0]] -= held[1]
