"""Program-aware pause and restore: admit by present tokens, pause the shortest when a pool overflows.

Source: ThunderAgent (arXiv 2602.13692), ThunderAgent/scheduler/router.py. A program is active on a replica or
paused. At each tick (there every 5 s; here each report of load): (1) restore paused programs, those with a
pending request first, then new ones, then those at a tool, each shortest first, as many as fit in total,
placed largest first on the replica with the most room; (2) where the tokens of the active programs exceed the
pool, pause programs at a tool shortest first, then mark running ones shortest first, which are paused when
their turn ends. A new program is placed immediately if no other waits and a replica has room. The original
counts streamed tokens; this uses the replica's report if it is larger than the sum of known contexts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstar.engine.scheduling import events
from rocstar.engine.scheduling.schedule_state import Phase, ReplicaEntry, ScheduleState, TrajectoryEntry


@dataclass(slots=True)
class Thunder:
    """Tunables: `buffer_tokens` held back per active program; `acting_weight` of tokens at a tool."""

    buffer_tokens: int = 100
    acting_weight: float = 1.0
    name: str = field(default="thunder", init=False)
    _active: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """The replica of each program that is active."""
    _paused: dict[str, None] = field(default_factory=dict, init=False, repr=False)
    _marked: set[str] = field(default_factory=set, init=False, repr=False)

    def decide(
        self, event: events.Event, subject: TrajectoryEntry | None, now: ScheduleState
    ) -> Iterator[events.Command]:
        match event:
            case events.TurnReady() if subject is not None and subject.phase is Phase.ready:
                yield from self._ready(subject, now)
            case events.TurnEnded() if subject is not None and subject.traj in self._marked:
                yield from self._pause(subject, now)
            case events.Left() if subject is not None:
                self._forget(subject.traj)
            case events.LoadSeen():
                if event.replica == next(iter(now.replicas)):
                    yield from self._restore(now)
                yield from self._pause_until_safe(now.replicas[event.replica], now)
            case events.ReplicaUp():
                yield from self._restore(now)
            case events.ReplicaDown():
                for traj in [traj for traj, replica in self._active.items() if replica == event.replica]:
                    self._forget(traj)
                    self._paused[traj] = None
            case _:
                pass

    def _ready(self, turn: TrajectoryEntry, now: ScheduleState) -> Iterator[events.Command]:
        if (home := self._active.get(turn.traj)) is not None:
            yield events.Grant(traj=turn.traj, replica=home)
            return
        waiting = bool(self._paused)
        self._paused[turn.traj] = None
        if not waiting and not turn.turns:
            need = turn.context_tokens + self.buffer_tokens
            fitting = [r for r in now.replicas.values() if self._room(r) >= need]
            if fitting:
                yield from self._resume(turn, min(fitting, key=lambda r: r.resident_tokens).replica, now)

    def _room(self, replica: ReplicaEntry) -> float:
        """Tokens beyond those of its active programs and their buffers."""
        tokens = float(max(replica.resident_tokens, replica.seen_used_tokens or 0))
        if self.acting_weight != 1.0:
            at_tool = (t.context_tokens for t in replica.trajectories.values() if t.phase is Phase.tool)
            tokens -= (1.0 - self.acting_weight) * sum(at_tool)
        return replica.kv_tokens - tokens - len(replica.trajectories) * self.buffer_tokens

    def _pause(self, program: TrajectoryEntry, now: ScheduleState) -> Iterator[events.Command]:
        self._forget(program.traj)
        self._paused[program.traj] = None
        if program.home is not None and program.phase is Phase.tool:
            yield events.Drop(traj=program.traj, replica=program.home)

    def _pause_until_safe(self, replica: ReplicaEntry, now: ScheduleState) -> Iterator[events.Command]:
        room = self._room(replica)
        room += sum(t.context_tokens for t in replica.trajectories.values() if t.traj in self._marked)
        if room >= 0:
            return
        acting = [t for t in replica.trajectories.values() if t.phase is Phase.tool]
        for program in sorted(acting, key=lambda t: t.context_tokens):
            room += self.acting_weight * program.context_tokens + self.buffer_tokens
            yield from self._pause(program, now)
            if room >= 0:
                return
        running = [t for t in replica.trajectories.values() if t.phase is Phase.running]
        for program in sorted(running, key=lambda t: t.context_tokens):
            if program.traj not in self._marked:
                self._marked.add(program.traj)
                room += program.context_tokens
                if room >= 0:
                    return

    def _restore(self, now: ScheduleState) -> Iterator[events.Command]:
        room = {r.replica: self._room(r) for r in now.replicas.values()}
        total = sum(free for free in room.values() if free > self.buffer_tokens)
        chosen: list[TrajectoryEntry] = []
        paused = [now.trajectories[traj] for traj in self._paused if traj in now.trajectories]
        # A pending request of a started program, then new ones, then those at a tool; the shortest first.
        for program in sorted(paused, key=lambda p: (p.phase is not Phase.ready, not p.turns, p.context_tokens)):
            need = program.context_tokens + self.buffer_tokens
            if need <= total:
                chosen.append(program)
                total -= need
            if total <= self.buffer_tokens:
                break
        for program in sorted(chosen, key=lambda t: -t.context_tokens):
            best = max(room, key=room.__getitem__)
            need = program.context_tokens + self.buffer_tokens
            if need <= room[best]:
                room[best] -= need
                yield from self._resume(program, best, now)

    def _resume(self, program: TrajectoryEntry, replica: int, now: ScheduleState) -> Iterator[events.Command]:
        del self._paused[program.traj]
        self._active[program.traj] = replica
        if program.traj in now.ready:
            yield events.Grant(traj=program.traj, replica=replica)

    def _forget(self, traj: str) -> None:
        self._active.pop(traj, None)
        self._paused.pop(traj, None)
        self._marked.discard(traj)
