"""The benchmark's arithmetic: pairs, intervals, verdicts, and a grid whose every setting is one."""

import sys
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import bench_sim
import sim_grid
from scheduling.peers import POLICIES

from rocstar.engine.scheduling.policies import make_policy


def runs(*makespans: float, recomputed: float = 0.0) -> list[dict[str, Any]]:
    keys = ("utilisation", "kv_occupancy", "tail_s", "preemptions")
    return [
        {
            "seed": seed,
            "makespan_s": m,
            "ratio": m / 100,
            "recomputed_share": recomputed,
            **dict.fromkeys(keys, 0.0),
        }
        for seed, m in enumerate(makespans)
    ]


def test_pairs_and_their_interval() -> None:
    found = bench_sim.paired(runs(90, 96, 80, 90, 99), runs(100, 100, 100, 100, 100))
    changes = [-0.1, -0.04, -0.2, -0.1, -0.01]
    low, high = stats.t.interval(0.95, 4, loc=sum(changes) / 5, scale=stats.sem(changes))
    assert found["mean"] == pytest.approx(-0.09)
    assert (found["low"], found["high"]) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert bench_sim.paired(runs(90), runs(100)) == {"mean": pytest.approx(-0.1), "low": None, "high": None}
    for pairs, t in bench_sim.T_95.items():
        assert t == pytest.approx(stats.t.ppf(0.975, pairs - 1), abs=1e-3)


def test_verdicts_are_about_the_best_peer_and_the_worst_seed() -> None:
    policies = {
        "predictive": runs(100, 105, 111, 104, 103, recomputed=0.005),
        "round_robin": runs(130, 130, 130, 130, 130, recomputed=0.2),
        "thunder": runs(104, 109, 115, 108, 107),
    }
    cell: dict[str, Any] = {"policies": {name: {"runs": found} for name, found in policies.items()}}
    bench_sim.summarise(cell)
    assert cell["best_peer"] == "thunder"
    verdict = bench_sim.bars({"cell": cell})["cell"]
    assert verdict["kv_binds"] and verdict["never_1%_worse"] and verdict["recomputed_at_most_1%"]
    assert not verdict["ratio_at_most_1.10"], "one seed lies above it"
    assert verdict["10%_better_where_kv_binds"] is False, "3.7% better than the best peer is not 10%"


def test_the_best_known_schedule_is_the_shortest_of_all() -> None:
    policies = {"predictive": runs(110, 120), "thunder": runs(105, 130)}
    cell: dict[str, Any] = {
        "policies": {name: {"runs": found} for name, found in policies.items()},
        "clairvoyant_s": {"0": 108.0, "1": 114.0},
    }
    bench_sim.summarise(cell)
    known = cell["best_known"]
    assert known["ratio"] == pytest.approx((105 + 114) / 200)
    assert known["clairvoyant_ratio"] == pytest.approx((108 + 114) / 200)
    assert known["ours_over_it"] == pytest.approx((110 / 105 + 120 / 114) / 2)
    assert known["ours_ratio"] == pytest.approx(1.15)
    apart = known["ours_over_clairvoyant"]
    assert (apart["least"], apart["most"]) == (pytest.approx(110 / 108 - 1), pytest.approx(120 / 114 - 1))


def test_every_policy_has_a_grid_of_settings_that_exist() -> None:
    assert set(sim_grid.TUNABLES) == set(POLICIES)
    most = max(len(sim_grid.settings(name)) for name in POLICIES if name != "predictive")
    assert len(sim_grid.settings("predictive")) <= most
    for name in POLICIES:
        for setting in sim_grid.settings(name):
            own = {k: v for k, v in setting.items() if k != "conservativeness"}
            assert make_policy(name, POLICIES, **own).name == name
    assert not set(bench_sim.SEEDS) & set(bench_sim.TUNING_SEEDS)
