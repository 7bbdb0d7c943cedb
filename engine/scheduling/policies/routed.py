"""Routers: a turn is bound to a replica as soon as it is ready, and waits there.

    TurnReady --route--> queue of one replica --room (max_running)--> Grant

With max_running = 0 nothing waits here: every turn is sent at once, and the replica queues and preempts as
it can. A replica's loss routes its queue anew.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstar.engine.scheduling.events import Command, Event, Grant, Left, ReplicaDown, ReplicaUp, TurnEnded, TurnReady
from rocstar.engine.scheduling.schedule_state import Phase, ScheduleState, TrajectoryEntry


@dataclass(slots=True)
class Routed(ABC):
    """Tunable: `max_running`, turns granted per replica at a time (0 = no bound)."""

    max_running: int = 0
    _queues: dict[int, dict[str, None]] = field(default_factory=dict, init=False, repr=False)
    _bound: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def route(self, turn: TrajectoryEntry, now: ScheduleState) -> int:
        """The replica for this turn; at least one is up."""

    def decide(self, event: Event, subject: TrajectoryEntry | None, now: ScheduleState) -> Iterator[Command]:
        if isinstance(event, TurnReady):
            assert subject is not None
            if subject.phase is Phase.ready and now.replicas:
                yield from self._enqueue(subject, now)
        elif isinstance(event, TurnEnded | Left):
            assert subject is not None
            self._unbind(subject.traj)
            if subject.home is not None and subject.home in now.replicas:
                yield from self._serve(subject.home, now)
        elif isinstance(event, ReplicaDown):
            for traj in self._queues.pop(event.replica, {}):
                del self._bound[traj]
                if now.replicas and traj in now.ready:
                    yield from self._enqueue(now.ready[traj], now)
        elif isinstance(event, ReplicaUp):
            for waiting in [turn for traj, turn in now.ready.items() if traj not in self._bound]:
                yield from self._enqueue(waiting, now)

    def _enqueue(self, turn: TrajectoryEntry, now: ScheduleState) -> Iterator[Command]:
        self._unbind(turn.traj)
        replica = self._bound[turn.traj] = self.route(turn, now)
        self._queues.setdefault(replica, {})[turn.traj] = None
        yield from self._serve(replica, now)

    def _serve(self, replica: int, now: ScheduleState) -> Iterator[Command]:
        queue, view = self._queues.get(replica, {}), now.replicas[replica]
        while queue and (not self.max_running or view.running < self.max_running):
            traj = next(iter(queue))
            self._unbind(traj)
            if traj in now.ready:
                yield Grant(traj=traj, replica=replica)

    def _unbind(self, traj: str) -> None:
        replica = self._bound.pop(traj, None)
        if replica is not None:
            self._queues.get(replica, {}).pop(traj, None)


@dataclass(slots=True)
class Static(Routed):
    """Static split: the batch is cut into equal shares of whole groups, one share per replica, for good.

    Tunable: `max_running` (see Routed). Groups are dealt out in the order of their first turn. Source: the
    arrangement that the rStar2-Agent report (arXiv 2508.20722, section 3.2, figure 7) starts from: N rollouts
    per GPU; as verl's synchronous workers do, which chunk the batch over the replicas.
    """

    name: str = field(default="static", init=False)
    _share: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def route(self, turn: TrajectoryEntry, now: ScheduleState) -> int:
        if turn.home is not None:
            return turn.home
        share = self._share.setdefault(turn.group, len(self._share))
        return list(now.replicas)[share % len(now.replicas)]


@dataclass(slots=True)
class RoundRobin(Routed):
    """Each new trajectory (or turn) goes to the next replica, whatever its load.

    Tunables: `sticky`; `max_running` (see Routed). Source: AReaL's remote inference engine, whose only
    schedule policy is "round_robin", with the turns of one request id kept on one server so that its prefix
    is reused (`sticky`).
    """

    sticky: bool = True
    name: str = field(default="round_robin", init=False)
    _next: int = field(default=0, init=False, repr=False)

    def route(self, turn: TrajectoryEntry, now: ScheduleState) -> int:
        if self.sticky and turn.home is not None:
            return turn.home
        self._next += 1
        return list(now.replicas)[(self._next - 1) % len(now.replicas)]
