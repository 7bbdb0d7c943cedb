"""How the benchmark against TRL reads the steps of both sides and drives its children."""

import sys
from pathlib import Path

import pytest

from ..train.groups.test_packing import trajectory

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_step_vs_trl  # noqa: E402
from trl_bench.children import Child, ChildError  # noqa: E402

ECHO = """
import json, sys
print("chatter")
print("@@ " + json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "die":
        sys.exit("out of everything")
    print("@@ " + json.dumps({"did": command["do"]}), flush=True)
"""


def test_the_parts_of_our_step_are_the_whole() -> None:
    row = {
        **{"time/step": 5.0, "time/generate": 2.0, "time/kv_wait": 0.5, "time/tool_wait": 0.5},
        **{"time/learn": 1.5, "time/publish": 0.1, "time/other": 0.4, "ledger/kept": 2, "step": 3},
    }
    some = [trajectory(k, 48) for k in range(2)]
    step = bench_step_vs_trl.our_step(row, some)
    assert sum(step[name] for name in bench_step_vs_trl.PARTS) == pytest.approx(step["wall_s"]) == 5.0
    assert step["policy_tokens"] == sum(one.num_policy_tokens for one in some)
    assert (step["response_tokens"], step["trajectories"]) == (sum(one.response_length for one in some), 2)
    found = bench_step_vs_trl.summary("rocstar", [step, step])
    assert found["trajectories_per_s"] == 0.4
    assert found["policy_tokens_per_trajectory"] == some[0].num_policy_tokens


def test_a_child_is_asked_in_turn_and_its_end_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    with Child("echo", Path(sys.executable), str(tmp_path / "echo.py"), [], cores="0") as child:
        assert child.hear() == {"ready": True}
        assert child.ask(do="a") == {"did": "a"} and child.ask(do="b") == {"did": "b"}
        with pytest.raises(ChildError, match="out of everything"):
            child.ask(do="die")


def test_the_fastest_way_of_each_side_is_compared() -> None:
    speeds = {"rocstar": 1.0, "rocstar ahead": 2.0, "a": 0.5, "b": 0.4}
    sides = [{"side": side, "trajectories_per_s": speed} for side, speed in speeds.items()]
    assert bench_step_vs_trl.fastest(sides, is_ours=True)["side"] == "rocstar ahead"
    assert bench_step_vs_trl.fastest(sides, is_ours=False)["side"] == "a"
    assert [*bench_step_vs_trl.our_ways("1")] == ["rocstar"]
    assert [*bench_step_vs_trl.our_ways("0,1")] == ["rocstar", "rocstar ahead"]
