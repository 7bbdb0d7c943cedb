"""Admission and placement of turns: a pure state machine, with no task, no clock and no randomness.

    events ──> Ledger ──> Policy.decide ──> commands, each applied to the ledger ──> host
                                  └─ at a standstill: the scheduler's own grant

Nobody waits here: every decision follows an event, and nothing is polled. Two hosts drive it: the live fleet
(engine/fleet/fleet.py) and the flight simulator (engine/sim/).
"""

from __future__ import annotations

from rocstar.engine.scheduling.events import (
    Command,
    Drop,
    Event,
    Grant,
    Left,
    LoadSeen,
    Preempted,
    Refuse,
    ReplicaDown,
    ReplicaUp,
    Submitted,
    TurnEnded,
    TurnReady,
)
from rocstar.engine.scheduling.ledger import Ledger, ScheduleError, TrajectoryEntry
from rocstar.engine.scheduling.observation import Observation, Phase, Policy

ANY, NEW_OR_TOOL, RUNNING = tuple(Phase), (Phase.new, Phase.tool), (Phase.running,)
READY, TOOL_OR_READY = (Phase.ready,), (Phase.tool, Phase.ready)

__all__ = ["ScheduleError", "Scheduler"]


class Scheduler:
    """Keeps the ledger and lets a policy decide.

    Invariants:
    - Every trajectory is in exactly one phase, from Submitted to Left or Refuse; none is lost.
    - A grant goes to a ready trajectory and an up replica, and it is not granted again before its turn ended
      or its replica went down.
    - A replica's resident tokens are the sum of the contexts of the trajectories that live there.
    - When a replica goes down, every trajectory there loses its KV and can be granted elsewhere.
    - After every event: if nothing runs anywhere, no ready trajectory fits an up replica. A trajectory that
      fits no replica, up or down, is refused at once and never waited for.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._ledger = Ledger()

    @property
    def observation(self) -> Observation:
        return self._ledger

    def handle(self, event: Event) -> list[Command]:
        """Take the event in and decide. Raises ScheduleError on an event that cannot follow its past."""
        out: list[Command] = []
        subject = self._take_in(event, out)
        for command in self.policy.decide(event, subject, self._ledger):
            self._apply(command)
            out.append(command)
        ledger = self._ledger
        if ledger.ready and not ledger.num_running and (grant := self._standstill()):
            self._apply(grant)
            out.append(grant)
        return out

    def check(self) -> None:
        """Assert the invariants of the ledger; costs time in proportion to everything in it."""
        self._ledger.check()
        assert self._ledger.num_running or self._standstill() is None

    def _take_in(self, event: Event, out: list[Command]) -> TrajectoryEntry | None:
        ledger = self._ledger
        match event:
            case TurnReady():
                entry = ledger.entry(event.traj, NEW_OR_TOOL)
                ledger.grow(entry, event.context_tokens)
                entry.turn_context_tokens = event.context_tokens
                ledger.enter(entry, Phase.ready)
                self._refuse_too_large(entry, out)
                return entry
            case TurnEnded():
                entry = ledger.entry(event.traj, RUNNING)
                ledger.enter(entry, Phase.tool)
                ledger.grow(entry, max(entry.context_tokens, entry.turn_context_tokens + event.new_tokens))
                entry.turns += 1
                return entry
            case Left():
                entry = ledger.entry(event.traj, ANY)
                ledger.remove(entry)
                return entry
            case Submitted():
                entry = ledger.add(event)
                self._refuse_too_large(entry, out)
                return entry
            case Preempted():
                entry = ledger.entry(event.traj, RUNNING)
                ledger.grow(entry, event.context_tokens)
                assert entry.home is not None
                ledger.replicas[entry.home].preemptions += 1
                return entry
            case LoadSeen():
                replica = ledger.replica(event.replica)
                replica.seen_used_tokens, replica.seen_waiting = event.used_tokens, event.waiting
            case ReplicaUp():
                if event.replica in ledger.replicas or event.kv_tokens < 1:
                    raise ScheduleError(
                        f"replica {event.replica}: up already, or {event.kv_tokens} KV tokens"
                    )
                ledger.up(event.replica, event.kv_tokens)
            case ReplicaDown():
                for entry in list(ledger.replica(event.replica).trajectories.values()):
                    if entry.phase is Phase.running:
                        ledger.enter(entry, Phase.tool)
                    ledger.move(entry, None)
                del ledger.replicas[event.replica]
        return None

    def _refuse_too_large(self, entry: TrajectoryEntry, out: list[Command]) -> None:
        largest = self._ledger.largest_pool
        need = entry.prompt_tokens + entry.max_tokens
        if entry.context_tokens >= need:
            need = entry.context_tokens + 1
        if largest is not None and need > largest:
            self._ledger.remove(entry)
            out.append(
                Refuse(
                    traj=entry.traj,
                    detail=f"{need} tokens (prompt and limit) exceed the largest KV pool of {largest}: "
                    "lower the response limit, or give the replicas more KV",
                )
            )

    def _apply(self, command: Command) -> None:
        ledger = self._ledger
        match command:
            case Grant():
                entry = ledger.entry(command.traj, READY)
                ledger.replica(command.replica)
                ledger.move(entry, command.replica)
                ledger.enter(entry, Phase.running)
            case Drop():
                entry = ledger.entry(command.traj, TOOL_OR_READY)
                if entry.home != command.replica:
                    raise ScheduleError(f"{command.traj!r} lives at {entry.home}, not at {command.replica}")
                ledger.move(entry, None)
            case Refuse():
                raise ScheduleError(f"a policy may not refuse: {command.traj!r}")

    def _standstill(self) -> Grant | None:
        """Nothing runs: the grant that gets things going, if any ready trajectory fits an up replica."""
        for entry in self._ledger.ready.values():
            fitting = [r for r in self._ledger.replicas.values() if r.kv_tokens > entry.context_tokens]
            if fitting:
                best = max(fitting, key=lambda r: (r.replica == entry.home, r.kv_tokens - r.resident_tokens))
                return Grant(traj=entry.traj, replica=best.replica)
        return None
