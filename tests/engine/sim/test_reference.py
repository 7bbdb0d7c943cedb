"""The closed forms and incremental books give the schedule of a simulator that has neither, to 1e-9."""

import random

import pytest

from rocstar.engine.sim.flight import Flight
from tests.engine.sim import sim_cases as cases
from tests.engine.sim import sim_reference as reference


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("tight", [False, True])
def test_same_schedule_as_step_by_step(mixed: bool, tight: bool) -> None:
    preemptions = evictions = recomputed = 0
    for seed in range(30):
        rng = random.Random(f"{seed} {mixed} {tight}")
        workload = cases.random_workload(rng, trajectories=rng.randint(1, 14), siblings=rng.choice([1, 4]))
        cluster = cases.random_cluster(rng, workload, mixed=mixed, tight=tight)
        slow = reference.StepByStep(workload, cluster, cases.Chaos(seed))
        slow.run()
        fast = Flight(workload=workload, cluster=cluster, scheduler=cases.Chaos(seed), load_period_s=0.0)
        fast.run()
        label = f"seed {seed}: {cluster}"
        assert [s.left_s for s in fast.seats] == pytest.approx([t.left_s for t in slow.trips], rel=1e-9), label
        for replica, box in zip(fast.replicas, slow.boxes, strict=True):
            got = replica.totals
            assert (got.prefill_tokens, got.recomputed_tokens, got.decode_tokens, got.preemptions) == (
                box.prefilled,
                box.recomputed,
                box.decoded,
                box.preemptions,
            ), label
        preemptions += sum(r.totals.preemptions for r in fast.replicas)
        evictions += sum(r.pool.evicted_tokens for r in fast.replicas)
        recomputed += sum(r.totals.recomputed_tokens for r in fast.replicas)
    assert recomputed > 0
    if tight:  # or the cases would not test what they are for
        assert preemptions > 0 and evictions > 0
