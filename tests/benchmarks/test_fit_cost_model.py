"""The cost model's benchmark: what moves the machine must not move the result, and the simulator's rollouts
are the engine's."""

import random
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import fit_cost_model
from steady import measure, settle


class Machine:
    """Its speed wanders from load to load and drops by a fifth in the middle of a pass."""

    def __init__(self) -> None:
        self.runs, self.rng = 0, random.Random(3)

    def run(self, seconds: float) -> float:
        self.runs += 1
        return seconds * (1.2 if 12 <= self.runs < 24 else 1.0)


def test_a_machine_that_slows_down_for_a_while_changes_no_time() -> None:
    machine, times = Machine(), [0.3, 1.0, 2.0, 5.0]
    loads = [lambda seconds=seconds: machine.run(seconds) for seconds in times]
    readings = measure(loads, lambda: machine.run(0.4), passes=5, seed=0, note=lambda _: None)
    assert [len(some) for some in readings] == [5] * 4 and machine.runs == 5 * 9
    found = settle(readings)
    assert [one.seconds for one in found] == pytest.approx(times, rel=1e-9)
    assert max(one.raw_spread for one in found) > 0.03 > max(one.spread for one in found)


def test_the_orders_of_the_passes_differ() -> None:
    seen: list[int] = []

    def load(k: int) -> float:
        seen.append(k)
        return 1.0

    loads = [lambda k=k: load(k) for k in range(6)]
    measure(loads, lambda: 1.0, passes=3, seed=0, note=lambda _: None)
    passes = [seen[start : start + 6] for start in (0, 6, 12)]
    assert all(sorted(one) == list(range(6)) for one in passes) and len(set(map(tuple, passes))) == 3


def test_the_fit_finds_the_coefficients_it_is_given() -> None:
    rollouts = [
        fit_cost_model.Rollout(case=case, work=fit_cost_model.work_of(case, k))
        for k, case in enumerate(fit_cost_model.cases(10, seed=5))
    ]
    true = fit_cost_model.CostModel(
        forward_s=5e-4,
        request_s=4e-5,
        context_token_s=8e-8,
        prefill_token_s=6e-5,
        prefill_pair_s=1e-8,
        mixed=True,
    )
    seconds = [fit_cost_model.fly(r.work, r.case, true).makespan_s for r in rollouts]
    found = fit_cost_model.fit([fit_cost_model.features(r.work, r.case) for r in rollouts], seconds)
    for name in fit_cost_model.TERMS:
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-3)


@pytest.mark.parametrize("slots", [8, 16])
def test_the_engine_makes_the_forwards_that_the_simulator_makes(slots: int) -> None:
    case = fit_cost_model.Case(trajectories=16, slots=slots, prompt=30, turn=8, tool=5)
    rollout = fit_cost_model.Rollout(case=case, work=fit_cost_model.work_of(case, 1))
    with ThreadPoolExecutor(1) as thread:
        bench = fit_cost_model.Bench(Namespace(hidden=16, layers=1), thread)
        real = bench.counted(rollout)
        assert bench.counted(rollout) == real  # whatever the timing
    simulated = fit_cost_model.features(rollout.work, case)
    assert real[0] == pytest.approx(simulated[0], abs=4) and real[1] == pytest.approx(simulated[1], rel=0.05)
