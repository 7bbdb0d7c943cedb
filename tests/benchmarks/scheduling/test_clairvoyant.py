"""Schedules that know all lengths: near the bound where KV does not bind, and never below it."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from scheduling.clairvoyant import ByLength, KnownLengths, best_known_s

from rocstar.engine.sim.bound import lower_bound
from rocstar.engine.sim.cost import MI300X_14B, Cluster, ReplicaModel
from rocstar.engine.sim.flight import Flight
from rocstar.engine.sim.workloads import generate


@pytest.mark.parametrize(("name", "above"), [("short-tail", 1.10), ("paper", 1.12)])
def test_a_schedule_that_knows_the_future_comes_near(name: str, above: float) -> None:
    """Where KV does not bind, the bound is no more than this below what can be done, so a policy's distance
    from it is mostly the policy's (and the price of not knowing)."""
    workload = generate(name, tasks=64, seed=1)
    cluster = Cluster(model=ReplicaModel(kv_tokens=4_000_000, cost=MI300X_14B), replicas=8)
    flight = Flight(workload=workload, cluster=cluster, scheduler=ByLength(workload, cluster)).run()
    assert 1 <= flight.makespan_s / lower_bound(workload, cluster).seconds < above


def test_known_lengths_are_the_truth_and_the_best_of_both_is_kept() -> None:
    workload = generate("paper", tasks=4, siblings=8, seed=5)
    cluster = Cluster(model=ReplicaModel(kv_tokens=60_000, cost=MI300X_14B), replicas=2)
    lengths = KnownLengths({t.traj: t.response_tokens for t in workload.trajectories})
    for t in workload.trajectories:
        stays = lengths.going_on_K(lengths.cell(t.traj, 0, 0))
        last = int(np.flatnonzero(stays)[-1])
        assert last * lengths.bin_tokens <= t.response_tokens < (last + 1) * lengths.bin_tokens
    plan = Flight(workload=workload, cluster=cluster, scheduler=ByLength(workload, cluster)).run().makespan_s
    assert lower_bound(workload, cluster).seconds <= best_known_s(workload, cluster) <= plan
