"""Conservation: tokens in = tokens out, KV never above the pool, time never back; and small cases by hand."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.scheduling.events import Command, Event, Grant, ReplicaUp, TurnReady
from rocstar.engine.scheduling.policies import POLICIES, make_policy
from rocstar.engine.sim.bound import alone_s
from rocstar.engine.sim.cost import MI300X_14B, Cluster, CostModel, ReplicaModel
from rocstar.engine.sim.flight import Flight, SimulatedTrajectory, SimulationError
from rocstar.engine.sim.kv import Hold
from rocstar.engine.sim.replica import SimulatedReplica
from rocstar.engine.sim.workload import Workload, generate
from tests.engine.sim.sim_cases import one

SLOW = CostModel(forward_s=1e-2, request_s=1e-3, context_token_s=1e-5, prefill_token_s=1e-4, prefill_pair_s=1e-7)


def cluster(kv_tokens: int, cost: CostModel = SLOW, replicas: int = 1) -> Cluster:
    return Cluster(model=ReplicaModel(kv_tokens=kv_tokens, cost=cost), replicas=replicas)


def fly(workload: Workload, on: Cluster, policy: str = "round_robin") -> Flight:
    return Flight(workload=workload, cluster=on, scheduler=Scheduler(make_policy(policy))).run()


def check_books(replica: SimulatedReplica, holds: list[Hold]) -> None:
    """Assert the KV of a replica and its pool against every hold on it."""
    written = {id(r.hold): replica.steps - r.base + r.context - 1 for r in replica.running.values()}
    assert replica.context == sum(written.values())
    for hold in holds:  # what runs is brought up to date when it ends
        if id(hold) in written:
            hold.own = written[id(hold)] - hold.prompt.tokens
    pool, prompts = replica.pool, replica.prompts.values()
    held = sum(h.own for h in holds) + sum(p.tokens for p in prompts if p.resident)
    assert 0 <= pool.free == pool.tokens - held
    idle = sum(h.own for h in holds if not h.locked)
    assert pool.evictable == idle + sum(p.tokens for p in prompts if p.resident and not p.refs)
    assert all(p.refs == sum(h.refers for h in holds if h.prompt is p) for p in prompts)
    assert all(h.refers and h.prompt.resident for h in holds if h.own)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(("kv_tokens", "name"), [(30_000, "paper"), (400_000, "tool-heavy")])
def test_conservation(policy: str, kv_tokens: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every boundary of every replica the pool's books are those of its trajectories; time moves on."""
    workload = generate(name, tasks=2, siblings=8, seed=3)
    on = Cluster(model=ReplicaModel(kv_tokens=kv_tokens, cost=MI300X_14B), replicas=2, replicas_per_node=2)
    flight = Flight(workload=workload, cluster=on, scheduler=Scheduler(make_policy(policy)))
    times: list[float] = []

    def start(replica: SimulatedReplica, now: float) -> bool:
        moving = original(replica, now)
        times.append(now)
        holds = [s.hold for s in flight.seats if s.hold is not None and s.home is replica]
        check_books(replica, holds)
        return moving

    original = SimulatedReplica.start
    monkeypatch.setattr(SimulatedReplica, "start", start)
    flight.run()
    assert times == sorted(times) and times[-1] <= flight.makespan_s
    totals = [r.totals for r in flight.replicas]
    turns = sum(len(t.turns) for t in workload.trajectories)
    preempted = sum(t.preemptions for t in totals)
    # Every token comes from one decode step, but the first of each turn and of each return from a retraction.
    assert sum(t.decode_tokens for t in totals) == workload.generated_tokens - turns - preempted
    needed = sum(t.recomputed_tokens for t in totals) + sum(
        work.response_tokens - work.generated_tokens + len(work.turns) - 1 for work in workload.trajectories
    )
    prompts = sum(t.prefill_tokens for t in totals) - needed
    floor = sum({t.group: t.prompt_tokens for t in workload.trajectories}.values())
    assert floor <= prompts <= sum(t.prompt_tokens + 1 for t in workload.trajectories) + preempted
    for replica in flight.replicas:
        assert replica.pool.used == 0 and replica.pool.evictable == 0
        assert not replica.running and not replica.waiting
    assert all(isinstance(seat, SimulatedTrajectory) and seat.context for seat in flight.seats)


def test_one_trajectory_alone_by_hand() -> None:
    """Prompt 10, two turns of 3 and 2 tokens, 5 tokens of tool text that take 0.7 s."""
    a, b, c, d, e = 1e-2, 1e-3, 1e-5, 1e-4, 1e-7
    first = a + d * 10 + e * 50
    decode = 2 * (a + b) + c * (10 + 11)
    # KV of the third token was never computed: the second turn's input is it and the tool's five.
    second = a + d * 6 + e * (6 * 12 + 18)
    last = a + b + c * 18
    work = one("t", (3, 5, 0.7), (2, 0, 0.0))
    flight = fly(Workload(name="w", trajectories=(work,)), cluster(1000))
    assert flight.makespan_s == pytest.approx(first + decode + 0.7 + second + last, rel=1e-12)
    assert flight.makespan_s == pytest.approx(alone_s(work, flight.cluster.model), rel=1e-12)


def test_siblings_share_their_prompt() -> None:
    """Eight siblings prefill 100 tokens once and a token each; without sharing, 100 each."""
    trajectories = tuple(one(f"t{k}", (4, 0, 0.0), prompt=100) for k in range(8))
    workload = Workload(name="w", trajectories=trajectories)
    on = cluster(10_000)
    assert fly(workload, on).replicas[0].totals.prefill_tokens == 100 + 7
    apart = replace(on, model=replace(on.model, share_prompts=False))
    assert fly(workload, apart).replicas[0].totals.prefill_tokens == 800


def test_a_full_pool_retracts_and_computes_again() -> None:
    """Two trajectories of 10 + 40 tokens in a pool of 60, admitted at once: the younger gives way."""
    trajectories = tuple(one(f"t{k}", (40, 0, 0.0), group=f"g{k}") for k in range(2))
    on = cluster(60)
    on = replace(on, model=replace(on.model, conservativeness=0.0, clip_tokens=0))
    flight = fly(Workload(name="w", trajectories=trajectories), on)
    totals = flight.replicas[0].totals
    assert totals.preemptions == 1 and totals.recomputed_tokens > 0
    assert flight.seats[0].left_s is not None and flight.seats[1].left_s is not None
    assert flight.seats[0].left_s < flight.seats[1].left_s


def test_tools_queue_at_the_workers_of_a_node() -> None:
    trajectories = tuple(one(f"t{k}", (1, 1, 1.0), (1, 0, 0.0), group=f"g{k}") for k in range(3))
    workload = Workload(name="w", trajectories=trajectories)
    free = fly(workload, cluster(1000))
    narrow = fly(workload, replace(cluster(1000), tool_workers=1))
    assert free.tool_wait_s == 0 and narrow.tool_wait_s == pytest.approx(3.0)
    assert narrow.makespan_s > free.makespan_s + 1.9


def test_a_branch_begins_when_the_tools_of_its_parent_have_answered() -> None:
    parent = one("t", (3, 5, 0.7), (2, 0, 0.0))
    branch = replace(one("t~1.1", (4, 0, 0.0), group="t~1", prompt=18), fork=("t", 1))
    on = cluster(1000, replicas=2)
    alone = fly(Workload(name="w", trajectories=(parent,)), on)
    flight = fly(Workload(name="w", trajectories=(parent, branch)), on)
    begins = 1e-2 + 1e-4 * 10 + 1e-7 * 50 + 2 * (1e-2 + 1e-3) + 1e-5 * (10 + 11) + 0.7
    assert flight.seats[0].left_s == pytest.approx(alone.makespan_s)
    assert flight.seats[1].left_s == pytest.approx(begins + alone_s(branch, on.model))
    with pytest.raises(ValueError, match="goes on behind turn 2"):
        Workload(name="w", trajectories=(parent, replace(branch, fork=("t", 2))))


def test_siblings_that_end_early_leave_with_the_token_under_way() -> None:
    """When the first is done one is at its tools, one writes, and one waits for a place."""
    works = (
        one("t0", (12, 0, 0.0)),
        one("t1", (2, 5, 9.0), (400, 0, 0.0)),
        one("t2", (500, 0, 0.0)),
        one("t3", (300, 0, 0.0)),
    )
    on = cluster(10_000)
    on = replace(on, model=replace(on.model, max_running=2))
    workload = Workload(name="w", trajectories=works)
    scheduler = Scheduler(make_policy("round_robin"))
    ends = {"t0": ("t1", "t2", "t3")}
    flight = Flight(workload=workload, cluster=on, scheduler=scheduler, ends=lambda traj: ends[traj]).run()
    assert [seat.ended_early for seat in flight.seats] == [False, True, True, True]
    generated = [seat.generated for seat in flight.seats]
    assert generated[:2] == [12, 2] and 8 <= generated[2] <= 12 and generated[3] == 1
    assert flight.makespan_s < 10.0 and all(not replica.pool.used for replica in flight.replicas)


def test_an_early_end_cuts_the_segment_of_another_replica() -> None:
    works = (one("t0", (12, 0, 0.0)), one("t1", (500, 0, 0.0)))
    scheduler = Scheduler(make_policy("round_robin"))
    workload, on = Workload(name="w", trajectories=works), cluster(10_000, replicas=2)
    flight = Flight(workload=workload, cluster=on, scheduler=scheduler, ends=lambda traj: ("t1",)).run()
    assert flight.seats[0].home is flight.seats[1].home is None and flight.seats[1].generated in (12, 13)
    assert flight.makespan_s < flight.seats[0].left_s + 0.02  # type: ignore[operator]


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [
        fly(generate("tool-heavy", tasks=2, siblings=8, seed=5), cluster(60_000, MI300X_14B, 2), "predictive")
        for _ in range(2)
    ]
    assert [s.left_s for s in runs[0].seats] == [s.left_s for s in runs[1].seats]


class Sulking:
    """Grants nothing, ever."""

    def handle(self, event: Event) -> list[Command]:
        return []


class Early:
    """Grants each turn when it is ready, on replica 0; remembers what it was told."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def handle(self, event: Event) -> Iterator[Command] | list[Command]:
        self.seen.append(event)
        return [Grant(traj=event.traj, replica=0)] if isinstance(event, TurnReady) else []


def test_a_policy_that_stops_is_named_and_not_waited_for() -> None:
    workload = Workload(name="w", trajectories=(one("t", (1, 0, 0.0)),))
    with pytest.raises(SimulationError, match="1 trajectories wait and nothing moves"):
        Flight(workload=workload, cluster=cluster(100), scheduler=Sulking()).run()


def test_what_the_scheduler_is_told() -> None:
    """Contexts grow by what was written and what tools answered; a life is submitted, ready, ended, left."""
    workload = Workload(name="w", trajectories=(one("t", (3, 5, 0.1), (2, 0, 0.0)),))
    early = Early()
    Flight(workload=workload, cluster=cluster(100), scheduler=early, load_period_s=0.0).run()  # type: ignore[arg-type]
    names = [type(event).__name__ for event in early.seen]
    assert names == ["ReplicaUp", "Submitted", "TurnReady", "TurnEnded", "TurnReady", "TurnEnded", "Left"]
    assert [e.context_tokens for e in early.seen if isinstance(e, TurnReady)] == [10, 18]
    assert isinstance(early.seen[0], ReplicaUp) and early.seen[0].kv_tokens == 100


def test_the_work_of_a_trajectory_must_make_sense() -> None:
    rng = random.Random(0)
    good = one("t", (3, 5, rng.random()), (2, 0, 0.0))
    with pytest.raises(ValueError, match="exceed"):
        replace(good, max_tokens=9)
    with pytest.raises(ValueError, match="last turn"):
        replace(good, turns=good.turns[:1])
    with pytest.raises(ValueError, match="2 times"):
        Workload(name="w", trajectories=(good, good))
    with pytest.raises(ValueError, match="different lengths"):
        Workload(name="w", trajectories=(good, replace(good, traj="u", prompt_tokens=11)))
