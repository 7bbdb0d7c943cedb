"""Simulate one policy on one workload, for the command line, the tuner and the benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.scheduling.observation import Policy
from rocstar.engine.scheduling.policies import POLICIES, PolicyFactory, make_policy
from rocstar.engine.sim.bound import LowerBound, lower_bound
from rocstar.engine.sim.cost import Cluster
from rocstar.engine.sim.flight import Flight
from rocstar.engine.sim.outcome import Outcome, outcome
from rocstar.engine.sim.two_levels import Levels, TwoLevels
from rocstar.engine.sim.work import Workload


def simulate(
    workload: Workload,
    cluster: Cluster,
    policy: str,
    tunables: Mapping[str, Any] | None = None,
    *,
    history: Workload | None = None,
    bound: LowerBound | None = None,
    record: bool = False,
    two_levels: Levels | None = None,
    policies: Mapping[str, PolicyFactory] = POLICIES,
    on_left: Callable[[int, int], None] | None = None,
) -> tuple[Outcome, Flight]:
    """Run the step through a scheduler that has run `history` before: a step in the middle of training, not
    the first one. Ours knows the cluster's costs unless `tunables` say otherwise. Raise ValueError for an
    unknown policy or tunable, SimulationError if the work never ends under the policy.

    Args:
        two_levels: one scheduler per node behind grants of parts of groups, instead of one over all replicas.
        policies: those that `policy` may name.
        on_left: called with (left, total) trajectories, those of `history` included.
    """
    told: dict[str, Any] = {**cluster.model.cost.in_context_tokens()} if policy == "predictive" else {}
    tunables = told | dict(tunables or {})

    def made() -> Policy:
        return make_policy(policy, policies, **tunables)

    if two_levels is None:
        scheduler: Scheduler | TwoLevels = Scheduler(made())
    else:
        scheduler = TwoLevels(made, replicas_per_node=cluster.replicas_per_node, levels=two_levels)
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
        record=record,
        on_left=left_behind(before),
    ).run()
    return outcome(flight, policy, bound or lower_bound(workload, cluster)), flight


def _expect(scheduler: Scheduler | TwoLevels, workload: Workload) -> None:
    if isinstance(scheduler, TwoLevels):
        scheduler.expect(Counter(work.group for work in workload.trajectories))
