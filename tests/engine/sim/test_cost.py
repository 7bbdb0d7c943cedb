"""Closed forms against sums."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.fleet.scheduler import Scheduler
from rocstar.engine.scheduling.policies.predictive import Predictive
from rocstar.engine.sim.cost import MI300X_14B, Cluster, CostModel, ReplicaModel, pairs
from rocstar.engine.sim.simulate import simulate
from rocstar.engine.sim.workload import generate

COSTS = st.builds(
    CostModel,
    forward_s=st.floats(1e-4, 1e-1),
    request_s=st.floats(0, 1e-3),
    context_token_s=st.sampled_from([0.0, 1e-8, 1e-5]),
    prefill_token_s=st.floats(0, 1e-3),
    prefill_pair_s=st.floats(0, 1e-6),
    draft_tokens=st.sampled_from([1.0, 2.5]),
    draft_rows=st.integers(0, 50),
)


@given(COSTS, st.integers(0, 200), st.integers(1, 300), st.integers(0, 10**6))
def test_decode_is_the_sum_of_its_steps(cost: CostModel, steps: int, requests: int, context: int) -> None:
    total = sum(cost.decode_s(1, requests, context + k * requests) for k in range(steps))
    assert cost.decode_s(steps, requests, context) == pytest.approx(total, rel=1e-9)


@given(COSTS, st.floats(0, 3), st.integers(1, 50), st.integers(0, 10**5), st.integers(1, 200))
def test_steps_within_is_the_first_boundary_not_before(
    cost: CostModel, seconds: float, requests: int, context: int, limit: int
) -> None:
    found = cost.steps_within(seconds, requests, context, limit)
    first = next((k for k in range(1, limit) if cost.decode_s(k, requests, context) >= seconds), limit)
    assert found == first


def test_drafts_divide_the_time_of_few_requests() -> None:
    drafts = replace(MI300X_14B, draft_tokens=2.5, draft_rows=4)
    for requests, factor in ((4, 2.5), (5, 1.0)):
        plain = MI300X_14B.decode_s(100, requests, 9000)
        assert drafts.decode_s(100, requests, 9000) == pytest.approx(plain / factor)
    with pytest.raises(ValueError, match="at least one token"):
        replace(MI300X_14B, draft_tokens=0.5)


@given(st.integers(0, 5000), st.integers(0, 500), st.integers(0, 500))
def test_pairs_add_up_over_chunks(cached: int, first: int, second: int) -> None:
    assert pairs(cached, first) + pairs(cached + first, second) == pairs(cached, first + second)


def test_what_ours_takes_for_granted_is_the_default_hardware() -> None:
    ours, found = Predictive(), MI300X_14B.in_context_tokens()
    assert found == {name: getattr(ours, name) for name in found}


def test_ours_is_told_what_the_simulated_engine_costs() -> None:
    cost = CostModel(
        forward_s=6.14e-3, request_s=5e-6, context_token_s=1e-6, prefill_token_s=2.6e-6, prefill_pair_s=0.0
    )
    work = generate("paper", tasks=1, siblings=2, seed=1)
    cluster = Cluster(model=ReplicaModel(kv_tokens=20_000, cost=cost), replicas=2)
    told = {"forward_tokens": 6100.0, "request_tokens": 5.0, "prefill_tokens": 3.0}
    for tunables, expected in (({}, told), ({"forward_tokens": 7.0}, {**told, "forward_tokens": 7.0})):
        _, flight = simulate(work, cluster, "predictive", tunables)
        assert isinstance(flight.scheduler, Scheduler)
        policy = flight.scheduler.policy
        assert expected == {name: getattr(policy, name) for name in told}


def test_a_context_token_that_costs_nothing_has_a_price() -> None:
    free = CostModel(forward_s=1e-3, request_s=1e-6, context_token_s=0.0, prefill_token_s=1e-5, prefill_pair_s=0.0)
    assert free.in_context_tokens()["forward_tokens"] == 1e9


def test_impossible_models_are_refused() -> None:
    with pytest.raises(ValueError, match="cost something"):
        CostModel(forward_s=0, request_s=0, context_token_s=0, prefill_token_s=0, prefill_pair_s=0)
    with pytest.raises(ValueError, match="at least 1"):
        ReplicaModel(kv_tokens=0, cost=MI300X_14B)
    with pytest.raises(ValueError, match="at least one"):
        Cluster(model=ReplicaModel(kv_tokens=1, cost=MI300X_14B), replicas=0)
