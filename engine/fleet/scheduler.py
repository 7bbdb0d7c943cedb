"""Admission and placement of turns: a pure state machine, with no task, no clock and no randomness.

    events ──> ScheduleState ──> SchedulingPolicy.decide ──> commands, each applied to the state ──> host
                                  └─ at a standstill: the scheduler's own grant

No caller waits here: every decision follows an event, and nothing is polled. Two hosts drive it: the live fleet
(engine/fleet/fleet.py) and the flight simulator (engine/sim/).
"""

from rocstar.engine.scheduling import events
from rocstar.engine.scheduling.schedule_state import (
    Phase,
    ScheduleError,
    ScheduleState,
    SchedulingPolicy,
    TrajectoryEntry,
)

ANY, NEW_OR_TOOL, RUNNING = tuple(Phase), (Phase.new, Phase.tool), (Phase.running,)
READY, TOOL_OR_READY = (Phase.ready,), (Phase.tool, Phase.ready)

__all__ = ["ScheduleError", "Scheduler"]


class Scheduler:
    """Keeps the state and lets a policy decide.

    Invariants:
    - Every trajectory is in exactly one phase, from Submitted to Left or Refuse; none is lost.
    - A grant goes to a ready trajectory and an up replica, and it is not granted again before its turn ended
      or its replica went down.
    - A replica's resident tokens are the sum of the contexts of the trajectories that live there.
    - When a replica goes down, every trajectory there loses its KV and can be granted elsewhere.
    - After every event: if nothing runs anywhere, no ready trajectory fits an up replica. A trajectory that
      fits no replica, up or down, is refused at once and never waited for.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.state = ScheduleState()

    def handle(self, event: events.Event) -> list[events.Command]:
        """Take the event in and decide. Raises ScheduleError on an event that cannot follow its past."""
        out: list[events.Command] = []
        subject = self._take_in(event, out)
        for command in self.policy.decide(event, subject, self.state):
            self._apply(command)
            out.append(command)
        state = self.state
        if state.ready and not state.num_running and (grant := self.standstill_grant()):
            self._apply(grant)
            out.append(grant)
        return out

    def _take_in(self, event: events.Event, out: list[events.Command]) -> TrajectoryEntry | None:
        state = self.state
        match event:
            case events.TurnReady():
                entry = state.entry(event.traj, NEW_OR_TOOL)
                state.grow(entry, event.context_tokens)
                entry.turn_context_tokens = event.context_tokens
                state.enter(entry, Phase.ready)
                self._refuse_too_large(entry, out)
                return entry
            case events.TurnEnded():
                entry = state.entry(event.traj, RUNNING)
                state.enter(entry, Phase.tool)
                state.grow(entry, max(entry.context_tokens, entry.turn_context_tokens + event.new_tokens))
                entry.turns += 1
                return entry
            case events.Left():
                entry = state.entry(event.traj, ANY)
                state.remove(entry)
                return entry
            case events.Submitted():
                entry = state.add(event)
                self._refuse_too_large(entry, out)
                return entry
            case events.Preempted():
                entry = state.entry(event.traj, RUNNING)
                state.grow(entry, event.context_tokens)
                assert entry.home is not None
                state.replicas[entry.home].preemptions += 1
                return entry
            case events.LoadSeen():
                replica = state.replica(event.replica)
                replica.seen_used_tokens, replica.seen_waiting = event.used_tokens, event.waiting
            case events.ReplicaUp():
                if event.replica in state.replicas or event.kv_tokens < 1:
                    raise ScheduleError(f"replica {event.replica}: up already, or {event.kv_tokens} KV tokens")
                state.up(event.replica, event.kv_tokens)
            case events.ReplicaDown():
                for entry in list(state.replica(event.replica).trajectories.values()):
                    if entry.phase is Phase.running:
                        state.enter(entry, Phase.tool)
                    state.move(entry, None)
                del state.replicas[event.replica]
        return None

    def _refuse_too_large(self, entry: TrajectoryEntry, out: list[events.Command]) -> None:
        largest = self.state.largest_pool
        need = entry.prompt_tokens + entry.max_tokens
        if entry.context_tokens >= need:
            need = entry.context_tokens + 1
        if largest is not None and need > largest:
            self.state.remove(entry)
            out.append(
                events.Refuse(
                    traj=entry.traj,
                    detail=f"{need} tokens (prompt and limit) exceed the largest KV pool of {largest}: "
                    "lower the response limit, or give the replicas more KV",
                )
            )

    def _apply(self, command: events.Command) -> None:
        state = self.state
        match command:
            case events.Grant():
                entry = state.entry(command.traj, READY)
                state.replica(command.replica)
                state.move(entry, command.replica)
                state.enter(entry, Phase.running)
            case events.Drop():
                entry = state.entry(command.traj, TOOL_OR_READY)
                if entry.home != command.replica:
                    raise ScheduleError(f"{command.traj!r} lives at {entry.home}, not at {command.replica}")
                state.move(entry, None)
            case events.Refuse():
                raise ScheduleError(f"a policy may not refuse: {command.traj!r}")

    def standstill_grant(self) -> events.Grant | None:
        """Nothing runs: the grant that gets things going, if any ready trajectory fits an up replica."""
        for entry in self.state.ready.values():
            fitting = [r for r in self.state.replicas.values() if r.kv_tokens > entry.context_tokens]
            if fitting:
                best = max(fitting, key=lambda r: (r.replica == entry.home, r.kv_tokens - r.resident_tokens))
                return events.Grant(traj=entry.traj, replica=best.replica)
        return None
