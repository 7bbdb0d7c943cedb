"""Simulate one policy on one workload, for the command line and the benchmarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.scheduling.policies import POLICIES, PolicyFactory, make_policy
from rocstar.engine.scheduling.schedule_state import SchedulingPolicy
from rocstar.engine.sim.bound import LowerBound, lower_bound
from rocstar.engine.sim.cost import Cluster
from rocstar.engine.sim.flight import Flight
from rocstar.engine.sim.multi_node import MultiNodeScheduler, NodeSettings
from rocstar.engine.sim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Shares are of 1. `tail_s` = from the moment 90% of the trajectories were done to the end."""

    policy: str
    workload: str
    makespan_s: float
    bound_s: float
    utilisation: float
    """Replica time in which a forward ran."""
    mean_batch: float
    """Requests decoding, averaged over replicas and time."""
    kv_occupancy: float
    """KV in the pools, idle KV included, averaged over replicas and time."""
    generated_tokens: int
    recomputed_share: float
    """Tokens whose KV was computed again, per generated token."""
    preemptions: int
    evicted_tokens: int
    migrations: int
    tail_s: float
    first_group_s: float
    """When half of the groups were complete."""
    tool_wait_s: float
    """Spent in the nodes' tool queues, summed."""
    events: int
    scheduler_us: float
    """CPU microseconds in the scheduler per turn."""

    @property
    def ratio(self) -> float:
        """Makespan over the lower bound."""
        return self.makespan_s / self.bound_s

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def outcome(flight: Flight, policy: str, bound: LowerBound) -> Outcome:
    """Sum a finished flight up."""
    totals = [replica.totals for replica in flight.replicas]
    span = flight.makespan_s * len(totals)
    generated = sum(seat.generated for seat in flight.seats)
    done = sorted(seat.left_s or 0.0 for seat in flight.seats)
    groups: dict[str, float] = {}
    for seat in flight.seats:
        groups[seat.work.group] = max(groups.get(seat.work.group, 0.0), seat.left_s or 0.0)
    complete = sorted(groups.values())
    turns = sum(len(seat.work.turns) for seat in flight.seats)
    return Outcome(
        policy=policy,
        workload=flight.workload.name,
        makespan_s=flight.makespan_s,
        bound_s=bound.seconds,
        utilisation=sum(t.busy_s for t in totals) / span,
        mean_batch=sum(t.running_s for t in totals) / span,
        kv_occupancy=sum(t.kv_token_s for t in totals) / span / flight.cluster.model.kv_tokens,
        generated_tokens=generated,
        recomputed_share=sum(t.recomputed_tokens for t in totals) / generated,
        preemptions=sum(t.preemptions for t in totals),
        evicted_tokens=sum(replica.pool.evicted_tokens for replica in flight.replicas),
        migrations=flight.migrations,
        tail_s=done[-1] - done[int(0.9 * (len(done) - 1))],
        first_group_s=complete[(len(complete) - 1) // 2],
        tool_wait_s=flight.tool_wait_s,
        events=flight.events,
        scheduler_us=1e6 * flight.scheduler_s / turns,
    )


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: str,
    tunables: Mapping[str, Any] | None = None,
    *,
    history: Workload | None = None,
    bound: LowerBound | None = None,
    two_levels: NodeSettings | None = None,
    policies: Mapping[str, PolicyFactory] = POLICIES,
    on_left: Callable[[int, int], None] | None = None,
    ends: Callable[[str], Collection[str]] | None = None,
) -> tuple[Outcome, Flight]:
    """Run the step through a scheduler that has run `history` before: a step in the middle of training, not
    the first one. Ours knows the cluster's costs unless `tunables` say otherwise. Raise ValueError for an
    unknown policy or tunable, SimulationError if the work never ends under the policy.

    Args:
        two_levels: one scheduler per node behind grants of parts of groups, instead of one over all replicas.
        policies: those that `policy` may name.
        ends: as of `Flight`, for `workload`.
        on_left: called with (left, total) trajectories, those of `history` included.
    """
    told: dict[str, Any] = {**cluster.model.cost.in_context_tokens()} if policy == "predictive" else {}
    tunables = told | dict(tunables or {})

    def made() -> SchedulingPolicy:
        return make_policy(policy, policies, **tunables)

    if two_levels is None:
        scheduler: Scheduler | MultiNodeScheduler = Scheduler(made())
    else:
        scheduler = MultiNodeScheduler(made, replicas_per_node=cluster.replicas_per_node, levels=two_levels)
    before = 0 if history is None else len(history.trajectories)
    total = before + len(workload.trajectories)

    def left_behind(earlier: int) -> Callable[[int, int], None] | None:
        return None if on_left is None else lambda left, _: on_left(earlier + left, total)

    if history is not None:
        _expect(scheduler, history)
        Flight(workload=history, cluster=cluster, scheduler=scheduler, on_left=left_behind(0)).run()
    _expect(scheduler, workload)
    flight = Flight(
        workload=workload,
        cluster=cluster,
        scheduler=scheduler,
        goes_on=history is not None,
        on_left=left_behind(before),
        ends=ends,
    ).run()
    return outcome(flight, policy, bound or lower_bound(workload, cluster)), flight


def _expect(scheduler: Scheduler | MultiNodeScheduler, workload: Workload) -> None:
    if isinstance(scheduler, MultiNodeScheduler):
        scheduler.expect(Counter(work.group for work in workload.trajectories))
