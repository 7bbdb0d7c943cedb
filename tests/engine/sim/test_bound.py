"""The lower bound lies below every schedule, and is not idle talk: simple cases reach it."""

import math
import random

import numpy as np
import pytest

from rocstar.engine.scheduling.policies import POLICIES
from rocstar.engine.sim.bound import _sum_of_roots, lower_bound
from rocstar.engine.sim.cost import MI300X_14B, Cluster, CostModel, ReplicaModel
from rocstar.engine.sim.flight import Flight
from rocstar.engine.sim.simulate import simulate
from rocstar.engine.sim.workload import Workload, generate
from tests.engine.sim import sim_cases as cases


@pytest.mark.parametrize("mixed", [False, True])
def test_no_schedule_is_shorter(mixed: bool) -> None:
    """Over random work, clusters and schedules, migrations, drops and retractions included."""
    tightest = math.inf
    for seed in range(120):
        rng = random.Random(f"{seed} {mixed}")
        workload = cases.random_workload(rng, trajectories=rng.randint(1, 24), siblings=rng.choice([1, 4, 8]))
        cluster = cases.random_cluster(rng, workload, mixed=mixed, tight=rng.random() < 0.5)
        bound = lower_bound(workload, cluster)
        flight = Flight(workload=workload, cluster=cluster, scheduler=cases.Chaos(seed), load_period_s=0.0)
        ratio = flight.run().makespan_s / bound.seconds
        assert ratio >= 1 - 1e-9, f"seed {seed}: {bound} {cluster}"
        tightest = min(tightest, ratio)
    assert tightest < 1.05


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_policy_is_shorter(policy: str) -> None:
    for name in ("paper", "short-tail", "tool-heavy"):
        for kv_tokens in (50_000, 800_000):
            workload = generate(name, tasks=2, siblings=16, seed=7)
            cluster = Cluster(model=ReplicaModel(kv_tokens=kv_tokens, cost=MI300X_14B), replicas=2)
            found, _ = simulate(workload, cluster, policy)
            assert found.ratio >= 1


def uniform(count: int, tokens: int, prompt: int = 10) -> Workload:
    works = (cases.one(f"t{k}", (tokens, 0, 0.0), group=f"t{k}", prompt=prompt) for k in range(count))
    return Workload(name="uniform", trajectories=tuple(works))


def batched(request_s: float) -> CostModel:
    """A forward costs 10 ms and `request_s` for each request, whatever their context."""
    return CostModel(forward_s=1e-2, request_s=request_s, context_token_s=0.0, prefill_token_s=0.0, prefill_pair_s=0.0)


def test_equal_trajectories_reach_the_bound_in_time() -> None:
    """64 equal trajectories on 2 replicas can do no better than 32 side by side: z = 0 sees exactly that, and
    the work at the batch that fills a huge pool does not."""
    model = ReplicaModel(kv_tokens=10**7, cost=batched(1e-4), max_running=10**6)
    cluster = Cluster(model=model, replicas=2)
    workload = uniform(64, 500)
    found, _ = simulate(workload, cluster, "round_robin")
    bound = lower_bound(workload, cluster)
    assert found.makespan_s == pytest.approx(bound.work_s, rel=0.01)


def test_a_full_pool_reaches_the_bound_of_the_pool() -> None:
    """A pool that holds eight of the trajectories, filled all the time: within a twentieth of z = a / P."""
    model = ReplicaModel(kv_tokens=8 * 1024, cost=batched(1e-5), conservativeness=0.0, clip_tokens=0)
    cluster = Cluster(model=model, replicas=1)
    workload = uniform(400, 24, prompt=1000)
    found, _ = simulate(workload, cluster, "round_robin")
    assert 1 <= found.ratio < 1.05


def test_the_sum_of_roots_is_close_and_never_above() -> None:
    first, steps = np.array([1e-5, 3e-4, 2.0]), np.array([1.0, 700.0, 33.0])
    for slope in (0.0, 1e-8, 1e-6):
        exact = [sum(math.sqrt(f + slope * j) for j in range(int(n))) for f, n in zip(first, steps, strict=True)]
        found = _sum_of_roots(first, slope, steps)
        assert (found <= np.array(exact) * (1 + 1e-12)).all()
        assert found == pytest.approx(exact, rel=1e-3)
