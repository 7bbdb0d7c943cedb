"""The simulator again, token by token and without any bookkeeping: what the fast one is compared with.

It knows nothing of heaps, segments, lazy sums or incremental pools. A replica's KV is a dictionary from
trajectory to tokens; everything else is counted from it each time it is asked for. Same rules, same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.scheduling.events import (
    Drop,
    Event,
    Grant,
    Left,
    Preempted,
    ReplicaUp,
    Submitted,
    TurnEnded,
    TurnReady,
)
from rocstar.engine.sim.cost import Cluster
from rocstar.engine.sim.workload import TrajectoryWork, Workload


@dataclass(eq=False)
class Trip:
    work: TrajectoryWork
    index: int
    context: int
    turn: int = 0
    produced: int = 0
    home: int | None = None
    own: int = 0
    """Tokens behind the prompt whose KV lies at home."""
    idle_since: tuple[float, int] | None = None
    """(when last used, in which order it was let go); None while it is locked or has nothing."""
    computing: int = 0
    admitted: int = 0
    admitted_s: float = 0.0
    order: int = 0
    seen: int = 0
    left_s: float = -1.0
    at_replica: str = ""
    """"", waiting, prefill or running."""

    @property
    def limit_left(self) -> int:
        return self.work.max_tokens - (self.context - self.work.prompt_tokens) - self.produced


@dataclass(eq=False)
class Box:
    index: int
    waiting: list[Trip] = field(default_factory=list)
    running: list[Trip] = field(default_factory=list)
    partial: Trip | None = None
    chunks: list[tuple[Trip, int]] = field(default_factory=list)
    rides: bool = False
    ends_s: float | None = None
    starts_at: float | None = None
    full: bool = False
    prompts: dict[str, tuple[float, int] | None] = field(default_factory=dict)
    """Prompts here, by group; when they became idle, or None while a trajectory stands on them."""
    ratio: float = 0.0
    prefilled: int = 0
    recomputed: int = 0
    preemptions: int = 0
    decoded: int = 0
    peak: int = 0


class StepByStep:
    """Run a workload; afterwards `trips` say when each trajectory left and `boxes` hold the sums."""

    def __init__(self, workload: Workload, cluster: Cluster, scheduler: Scheduler) -> None:
        self.cluster, self.model, self.scheduler = cluster, cluster.model, scheduler
        self.trips = [Trip(w, i, w.prompt_tokens) for i, w in enumerate(workload.trajectories)]
        self.by_name = {t.work.traj: t for t in self.trips}
        self.boxes = [Box(i) for i in range(cluster.replicas)]
        for box in self.boxes:
            self.reset_ratio(box)
        self.tools: dict[int, float] = {}
        nodes = -(-cluster.replicas // cluster.replicas_per_node)
        self.workers = [[0.0] * cluster.tool_workers for _ in range(nodes)]
        self.now = 0.0
        self.clock = 0

    def run(self) -> None:
        for box in self.boxes:
            self.tell(ReplicaUp(replica=box.index, kv_tokens=self.model.kv_tokens))
        for trip in self.trips:
            w = trip.work
            self.tell(
                Submitted(
                    traj=w.traj, group=w.group, stage=w.stage, prompt_tokens=w.prompt_tokens, max_tokens=w.max_tokens
                )
            )
            self.tools[trip.index] = 0.0
        while any(trip.left_s < 0 for trip in self.trips):
            coming = [(at, 0, i) for i, at in self.tools.items()]
            coming += [(b.ends_s, 1, b.index) for b in self.boxes if b.ends_s is not None]
            coming += [(b.starts_at, 2, b.index) for b in self.boxes if b.starts_at is not None]
            self.now, kind, subject = min(coming)
            if kind == 0:
                del self.tools[subject]
                trip = self.trips[subject]
                self.tell(TurnReady(traj=trip.work.traj, context_tokens=trip.context))
            elif kind == 1:
                self.finish(self.boxes[subject])
            else:
                self.boxes[subject].starts_at = None
                self.start(self.boxes[subject])
            for box in self.boxes:
                box.peak = max(box.peak, self.used(box))
                assert self.used(box) <= self.model.kv_tokens

    # ---- KV, counted from scratch ----

    def group(self, trip: Trip) -> str:
        return trip.work.group if self.model.share_prompts else trip.work.traj

    def prompt_tokens(self, group: str) -> int:
        return next(t.work.prompt_tokens for t in self.trips if self.group(t) == group)

    def used(self, box: Box) -> int:
        own = sum(t.own for t in self.trips if t.home == box.index)
        return own + sum(self.prompt_tokens(g) for g in box.prompts)

    def free(self, box: Box) -> int:
        return self.model.kv_tokens - self.used(box)

    def idle(self, box: Box) -> list[tuple[tuple[float, int], str, int, int]]:
        """(since, group or "", trajectory or -1, tokens) of everything that may be evicted."""
        found = [
            (t.idle_since, "", t.index, t.own) for t in self.trips if t.home == box.index and t.idle_since is not None
        ]
        found += [(s, g, -1, self.prompt_tokens(g)) for g, s in box.prompts.items() if s is not None]
        return found

    def stands_on_prompt(self, trip: Trip, box: Box) -> bool:
        return trip.home == box.index and (trip.own > 0 or trip.at_replica in ("prefill", "running"))

    def settle_prompt(self, group: str, box: Box, at: float) -> None:
        """After somebody let go: nobody stands on it any more, so it is idle since then."""
        siblings = [t for t in self.trips if self.group(t) == group]
        locked = group in box.prompts and box.prompts[group] is None
        if locked and not any(self.stands_on_prompt(t, box) for t in siblings):
            self.clock += 1
            box.prompts[group] = (at, self.clock)
            if not self.model.keep_prompts:
                del box.prompts[group]

    def make_room(self, box: Box, tokens: int) -> bool:
        while self.free(box) < tokens:
            idle = self.idle(box)
            if not idle:
                return False
            since, group, index, _ = min(idle)
            if group:
                del box.prompts[group]
            else:
                trip = self.trips[index]
                trip.own, trip.idle_since = 0, None
                self.settle_prompt(self.group(trip), box, since[0])
        return True

    def cached(self, trip: Trip, box: Box) -> int:
        return trip.own + (trip.work.prompt_tokens if self.group(trip) in box.prompts else 0)

    def let_idle(self, trip: Trip, box: Box, at: float) -> None:
        trip.at_replica = ""
        if trip.own:
            self.clock += 1
            trip.idle_since = (at, self.clock)
        self.settle_prompt(self.group(trip), box, at)

    def let_go(self, trip: Trip) -> None:
        if trip.home is not None:
            box = self.boxes[trip.home]
            trip.own, trip.idle_since, trip.at_replica = 0, None, ""
            self.settle_prompt(self.group(trip), box, self.now)
            if not self.model.share_prompts:
                box.prompts.pop(self.group(trip), None)
        trip.home = None

    # ---- one forward ----

    def reset_ratio(self, box: Box) -> None:
        box.ratio = 0.7 * self.model.conservativeness

    def reserve(self, trip: Trip) -> int:
        return min(trip.limit_left, self.model.clip_tokens)

    def start(self, box: Box) -> None:
        if box.ends_s is not None:
            return
        cost = self.model.cost
        self.admit(box)
        if box.chunks:
            box.rides = cost.mixed and bool(box.running) and self.make_room(box, len(box.running))
            seconds = cost.forward_s
            for trip, tokens in box.chunks:
                for k in range(tokens):
                    seconds += cost.prefill_token_s + cost.prefill_pair_s * (trip.computing + k + 0.5)
            if box.rides:
                seconds += self.decode_cost(box)
            box.ends_s = self.now + seconds
            return
        if not box.running:
            self.reset_ratio(box)
            return
        lost: list[Trip] = []
        while not self.make_room(box, len(box.running)):
            victim = min(box.running, key=lambda t: (t.produced, -t.context, -t.order))
            box.running.remove(victim)
            lost.append(victim)
            victim.seen = victim.context + victim.produced - 1
            victim.own = victim.admitted - victim.work.prompt_tokens
            self.let_idle(victim, box, victim.admitted_s)
            victim.at_replica = "waiting"
            box.waiting.append(victim)
            box.preemptions += 1
            box.full = False
            limits = sum(t.limit_left + t.produced for t in box.running)
            box.ratio = min(1.0, sum(t.produced + 20 for t in box.running) / (limits + 1))
        for trip in lost:
            context = trip.context + trip.produced
            self.tell(Preempted(traj=trip.work.traj, context_tokens=context))
        box.rides = False
        step_s = cost.forward_s + self.decode_cost(box)
        box.ends_s = self.now + step_s / cost.tokens_per_step(len(box.running))

    def decode_cost(self, box: Box) -> float:
        cost = self.model.cost
        return sum(cost.request_s + cost.context_token_s * (t.context + t.produced - 1) for t in box.running)

    def admit(self, box: Box) -> None:
        budget, reserved = self.model.chunk_tokens, 0
        box.chunks = []
        if box.partial is not None:
            trip, box.partial = box.partial, None
            tokens = min(budget, trip.context + trip.produced - trip.computing)
            box.chunks.append((trip, tokens))
            budget -= tokens
            if trip.computing + tokens < trip.context + trip.produced:
                box.partial = trip
            else:
                reserved += self.reserve(trip)
        while box.waiting and budget > 0 and not box.full:
            trip = box.waiting[0]
            total = trip.context + trip.produced
            cached = min(self.cached(trip, box), total - 1)
            evictable = sum(tokens for *_, tokens in self.idle(box))
            evictable -= trip.own if trip.idle_since is not None else 0
            prompt_idle = box.prompts.get(self.group(trip)) is not None
            evictable -= trip.work.prompt_tokens if prompt_idle else 0
            others = box.ratio * sum(self.reserve(t) for t in box.running)
            fits = (
                len(box.running) + len(box.chunks) < self.model.max_running
                and total - cached + self.reserve(trip) < self.free(box) + evictable - others - reserved
            )
            if not fits and (box.running or box.chunks):
                box.full = True
                return
            box.waiting.pop(0)
            trip.at_replica, trip.idle_since = "prefill", None
            group = self.group(trip)
            missing = total - self.cached(trip, box)
            if group in box.prompts:
                box.prompts[group] = None
            assert self.make_room(box, missing)
            box.prompts[group] = None
            trip.own = total - trip.work.prompt_tokens
            trip.computing, trip.admitted, trip.admitted_s = cached, total, self.now
            tokens = min(budget, total - cached)
            box.chunks.append((trip, tokens))
            budget -= tokens
            if cached + tokens < total:
                box.partial = trip
            else:
                reserved += self.reserve(trip)

    def finish(self, box: Box) -> None:
        box.ends_s = None
        ended: list[Trip] = []
        decoding = list(box.running) if box.rides or not box.chunks else []
        for trip, tokens in box.chunks:
            for position in range(trip.computing, trip.computing + tokens):
                box.prefilled += 1
                box.recomputed += position < trip.seen
            trip.computing += tokens
            trip.seen = max(trip.seen, trip.computing)
            if trip.computing == trip.context + trip.produced:
                trip.produced += 1
                self.clock += 1
                trip.order = self.clock
                trip.at_replica = "running"
                box.running.append(trip)
        start_ratio = 0.7 * self.model.conservativeness
        if decoding:
            box.ratio = max(start_ratio * 0.14, box.ratio - start_ratio * 0.86 / 600)
        for trip in decoding:
            trip.own += 1
            trip.produced += 1
            box.decoded += 1
        for trip in list(box.running):
            if trip.produced == trip.work.turns[trip.turn].new_tokens:
                box.running.remove(trip)
                trip.seen = max(trip.seen, trip.context + trip.produced - 1)
                ended.append(trip)
        box.chunks = []
        ended.sort(key=lambda t: t.order)
        for trip in ended:
            self.let_idle(trip, box, self.now)
            box.full = False
        box.starts_at = self.now
        for trip in ended:
            self.end_turn(trip, box)

    def end_turn(self, trip: Trip, box: Box) -> None:
        turn = trip.work.turns[trip.turn]
        trip.context += turn.new_tokens + turn.tool_tokens
        trip.turn, trip.produced = trip.turn + 1, 0
        self.tell(TurnEnded(traj=trip.work.traj, new_tokens=turn.new_tokens))
        if trip.turn == len(trip.work.turns):
            self.let_go(trip)
            trip.left_s = self.now
            group = self.group(trip)
            if all(t.left_s >= 0 for t in self.trips if self.group(t) == group):
                for other in self.boxes:
                    other.prompts.pop(group, None)
            self.tell(Left(traj=trip.work.traj))
            return
        workers = self.workers[box.index // self.cluster.replicas_per_node]
        slot = min(range(len(workers)), key=lambda k: workers[k])
        workers[slot] = max(self.now, workers[slot]) + turn.tool_s
        self.tools[trip.index] = workers[slot]

    def tell(self, event: Event) -> None:
        for command in self.scheduler.handle(event):
            trip = self.by_name[command.traj]
            if isinstance(command, Drop):
                self.let_go(trip)
                continue
            assert isinstance(command, Grant)
            box = self.boxes[command.replica]
            if trip.home != box.index:
                self.let_go(trip)
                trip.home = box.index
            trip.at_replica = "waiting"
            box.waiting.append(trip)
            if box.ends_s is None:
                box.starts_at = self.now
