"""The event loop: the real scheduler on one side, replicas and tools made of arithmetic on the other.

    workload ──Submitted, TurnReady──> Scheduler ──Grant, Drop──> SimulatedReplica ──turn ended──> Scheduler
                    ^                                                           │
                    └────────── tool queue of the node, tool_s ─────────────────┘

Time goes forward only. At one instant tools come first, then replicas that finish, then those that start, so
that a start sees everything that has happened by then; among equals the number decides, so that
ties have a fixed order. Decisions of the scheduler take no simulated time.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.scheduling import events
from rocstar.engine.scheduling.events import Event
from rocstar.engine.sim.cost import Cluster
from rocstar.engine.sim.kv import Hold, Prompt
from rocstar.engine.sim.multi_node import MultiNodeScheduler
from rocstar.engine.sim.replica import SimulatedReplica, TurnRequest
from rocstar.engine.sim.workload import TrajectoryWork, Workload

TOOL, FINISH, START, LOAD = range(4)
"""Kinds of events, in their order at one instant."""


class SimulationError(RuntimeError):
    """The simulation cannot go on: the policy left work that nothing will ever wake, or refused some."""


@dataclass(slots=True, eq=False)
class SimulatedTrajectory:
    """One trajectory on its way. `hold` is its KV at `home`."""

    index: int
    work: TrajectoryWork
    context: int
    turn: int = 0
    written: int = 0
    """Tokens behind the prompt."""
    seen: int = 0
    home: SimulatedReplica | None = None
    hold: Hold | None = None
    left_s: float | None = None
    generated: int = 0
    """Tokens of the policy."""
    request: TurnRequest | None = None
    """Its turn on a replica."""
    at_tools: bool = True
    ended_early: bool = False


@dataclass(slots=True, kw_only=True)
class Flight:
    """One run of a workload through a scheduler. `run` once; then read the fields."""

    workload: Workload
    cluster: Cluster
    scheduler: Scheduler | MultiNodeScheduler
    load_period_s: float = 2.0
    """Seconds between two load reports of a replica."""
    goes_on: bool = False
    """The scheduler has run an earlier step on this cluster and keeps its replicas and statistics."""
    on_left: Callable[[int, int], None] | None = None
    """Called with how many trajectories have left, of how many: progress."""
    ends: Callable[[str], Collection[str]] | None = None
    """Called with each trajectory that is done: the siblings that end early then, with the token under way."""
    replicas: list[SimulatedReplica] = field(init=False)
    seats: list[SimulatedTrajectory] = field(init=False)
    makespan_s: float = field(init=False, default=0.0)
    migrations: int = field(init=False, default=0)
    tool_wait_s: float = field(init=False, default=0.0)
    events: int = field(init=False, default=0)
    scheduler_s: float = field(init=False, default=0.0)
    """CPU seconds in the scheduler."""
    _heap: list[tuple[float, int, int, int]] = field(init=False, default_factory=list)
    """(time, kind, trajectory or replica, version of the replica's plan)."""
    _versions: list[int] = field(init=False)
    _branches: dict[tuple[str, int], list[SimulatedTrajectory]] = field(init=False, default_factory=dict)
    """By trajectory and turn behind which they fork."""
    _by_name: dict[str, SimulatedTrajectory] = field(init=False)
    _groups: dict[str, int] = field(init=False, default_factory=dict)
    _workers: list[list[float]] = field(init=False)
    _left: int = field(init=False, default=0)
    _idle_reports: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        cluster = self.cluster
        self.replicas = [SimulatedReplica(index, cluster.model) for index in range(cluster.replicas)]
        self._versions = [0] * cluster.replicas
        self.seats = [
            SimulatedTrajectory(index, work, work.prompt_tokens)
            for index, work in enumerate(self.workload.trajectories)
        ]
        self._by_name = {seat.work.traj: seat for seat in self.seats}
        for seat in self.seats:
            self._groups[seat.work.group] = self._groups.get(seat.work.group, 0) + 1
            if seat.work.fork is not None:
                self._branches.setdefault(seat.work.fork, []).append(seat)
        nodes = -(-cluster.replicas // cluster.replicas_per_node)
        self._workers = [[0.0] * cluster.tool_workers for _ in range(nodes)]

    def run(self) -> Flight:
        """Until the last trajectory has left. SimulationError if it never would."""
        if not self.goes_on:
            for replica in self.replicas:
                self._tell(events.ReplicaUp(replica=replica.index, kv_tokens=self.cluster.model.kv_tokens), 0.0)
        roots = [seat for seat in self.seats if seat.work.fork is None]
        for seat in roots:
            self._submit(seat, 0.0)
        for seat in roots:
            self._push(0.0, TOOL, seat.index)
        if self.load_period_s:
            self._push(self.load_period_s, LOAD, 0)
        now, live = 0.0, len(self.seats)
        while self._left < live:
            if len(self._heap) == 1 and self._heap[0][1] == LOAD:
                # Only load reports are left to come. A policy may act on one; after many it is stuck.
                self._idle_reports += 1
            if not self._heap or self._idle_reports > 1000:
                raise SimulationError(f"{live - self._left} trajectories wait and nothing moves at {now:.1f} s")
            at, kind, subject, version = heapq.heappop(self._heap)
            if kind == FINISH and version != self._versions[subject]:
                continue
            assert at >= now, "time goes forward"
            now = at
            self.events += 1
            self._happen(kind, subject, now)
        self.makespan_s = max(seat.left_s or 0.0 for seat in self.seats)
        return self

    def _submit(self, seat: SimulatedTrajectory, now: float) -> None:
        work = seat.work
        event = events.Submitted(
            traj=work.traj,
            group=work.group,
            stage=work.stage,
            prompt_tokens=work.prompt_tokens,
            max_tokens=work.max_tokens,
        )
        self._tell(event, now)

    def _push(self, at: float, kind: int, subject: int, version: int = 0) -> None:
        heapq.heappush(self._heap, (at, kind, subject, version))

    def _happen(self, kind: int, subject: int, now: float) -> None:
        if kind == TOOL:
            seat = self.seats[subject]
            seat.at_tools = False
            for branch in self._branches.pop((seat.work.traj, seat.turn), []):
                self._submit(branch, now)
                self._push(now, TOOL, branch.index)
            if seat.ended_early:
                self._leave(seat, now)
                return
            self._tell(events.TurnReady(traj=seat.work.traj, context_tokens=seat.context), now)
        elif kind == FINISH:
            replica = self.replicas[subject]
            ended = replica.finish(now)
            self._wake(replica, now)
            for request in ended:
                self._end_turn(self.seats[request.seat], request, replica, now)
        elif kind == START:
            self._start(self.replicas[subject], now)
        else:
            for replica in self.replicas:
                used, running, waiting = replica.load()
                event = events.LoadSeen(replica=replica.index, used_tokens=used, running=running, waiting=waiting)
                self._tell(event, now)
            self._push(now + self.load_period_s, LOAD, 0)

    def _start(self, replica: SimulatedReplica, now: float) -> None:
        replica.pending = False
        if replica.until_s is not None:
            return
        moving = replica.start(now)
        for request in replica.retracted:
            seat = self.seats[request.seat]
            self._tell(events.Preempted(traj=seat.work.traj, context_tokens=request.context + request.produced), now)
        if moving:
            self._schedule(replica)

    def _schedule(self, replica: SimulatedReplica) -> None:
        assert replica.until_s is not None
        self._versions[replica.index] += 1
        self._push(replica.until_s, FINISH, replica.index, self._versions[replica.index])

    def _wake(self, replica: SimulatedReplica, now: float) -> None:
        if not replica.pending:
            replica.pending = True
            self._push(now, START, replica.index)

    def _end_turn(
        self, seat: SimulatedTrajectory, request: TurnRequest, replica: SimulatedReplica, now: float
    ) -> None:
        turn = seat.work.turns[seat.turn]
        seat.turn += 1
        seat.seen, seat.request = request.seen, None
        seat.generated += request.new_tokens
        seat.context += request.new_tokens + turn.tool_tokens
        seat.written += request.new_tokens + turn.tool_tokens
        self._tell(events.TurnEnded(traj=seat.work.traj, new_tokens=request.new_tokens), now)
        if seat.ended_early or seat.turn == len(seat.work.turns):
            self._leave(seat, now)
            if self.ends is not None and not seat.ended_early:
                for name in self.ends(seat.work.traj):
                    self._end_early(self._by_name[name], now)
            return
        seat.at_tools = True
        workers = self._workers[replica.index // self.cluster.replicas_per_node]
        begins = max(now, workers[0])
        self.tool_wait_s += begins - now
        heapq.heapreplace(workers, begins + turn.tool_s)
        self._push(begins + turn.tool_s, TOOL, seat.index)

    def _end_early(self, seat: SimulatedTrajectory, now: float) -> None:
        """Cut its turn; one whose tool works leaves when that ends, one that waits for a replica at once."""
        seat.ended_early = True
        if seat.request is not None:
            assert seat.home is not None
            if seat.home.cut(seat.request, now):
                self._schedule(seat.home)
        elif not seat.at_tools:
            self._leave(seat, now)

    def _leave(self, seat: SimulatedTrajectory, now: float) -> None:
        self._let_go(seat, now)
        seat.left_s = now
        self._left += 1
        if self.on_left is not None:
            self.on_left(self._left, len(self.seats))
        group = seat.work.group
        self._groups[group] -= 1
        if not self._groups[group] and self.cluster.model.share_prompts:
            for replica in self.replicas:
                if (prompt := replica.prompts.pop(group, None)) is not None:
                    replica.pool.forget(prompt)
        self._tell(events.Left(traj=seat.work.traj), now)

    def _let_go(self, seat: SimulatedTrajectory, now: float) -> None:
        if seat.home is not None and seat.hold is not None:
            seat.home.pool.release(seat.hold, now)
            if not self.cluster.model.share_prompts:
                seat.home.pool.forget(seat.hold.prompt)
        seat.home = seat.hold = None

    def _tell(self, event: Event, now: float) -> None:
        started = time.perf_counter()
        commands = self.scheduler.handle(event)
        self.scheduler_s += time.perf_counter() - started
        for command in commands:
            seat = self._by_name[command.traj]
            match command:
                case events.Grant():
                    self._grant(seat, self.replicas[command.replica], now)
                case events.Drop():
                    self._let_go(seat, now)
                case events.Refuse():
                    raise SimulationError(f"{command.traj}: {command.detail}")

    def _grant(self, seat: SimulatedTrajectory, replica: SimulatedReplica, now: float) -> None:
        if seat.home is not replica:
            if seat.home is not None:
                self.migrations += 1
            self._let_go(seat, now)
            prompt = Prompt(seat.work.prompt_tokens)
            if self.cluster.model.share_prompts:
                prompt = replica.prompts.setdefault(seat.work.group, prompt)
            seat.home, seat.hold = replica, Hold(prompt)
        assert seat.hold is not None
        request = TurnRequest(
            seat=seat.index,
            hold=seat.hold,
            context=seat.context,
            new_tokens=seat.work.turns[seat.turn].new_tokens,
            limit=seat.work.max_tokens - seat.written,
            seen=seat.seen,
        )
        seat.request = request
        if replica.enqueue(request, now):
            if replica.until_s is None:
                self._wake(replica, now)
            else:
                self._schedule(replica)
