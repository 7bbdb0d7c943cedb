"""What the benchmarks against TRL feed to both sides and how they compare: neither may measure wrongly."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_learner  # noqa: E402
import bench_step_vs_trl  # noqa: E402
from trl_bench import our_step, rows, tool  # noqa: E402
from trl_bench.children import Child, ChildError  # noqa: E402

from rocstar.engine.tools.results import result_text  # noqa: E402
from rocstar.sandbox.testing import ok  # noqa: E402
from rocstar.sandbox.types import ExecRequest, ExecResult, Status  # noqa: E402
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR  # noqa: E402

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


def test_equal_rows_are_half_tool_output_and_have_no_padding() -> None:
    batch = rows.equal(900, groups=2, siblings=3)
    about = batch.about()
    assert (about["rows"], about["groups"], about["tokens"]) == (6, 2, 6 * 128)
    assert about["tool_share_behind_prompt"] == 0.5 and about["padding_share_of_one_rectangle"] == 0
    assert about["shared_prefix_share"] == pytest.approx(4 * 32 / (6 * 128), abs=1e-3)
    apart = rows.equal(900, groups=2, siblings=3, shared_prompts=False)
    assert apart.about()["shared_prefix_share"] == 0 and apart.about()["groups"] == 2
    assert rows.equal(900, groups=2, siblings=3) == batch


def test_rows_survive_their_records_and_the_peer_gets_the_same(tmp_path: Path) -> None:
    batch = rows.equal(900, groups=2, siblings=2)
    rows.write(batch, tmp_path / "rows.jsonl")
    again = rows.read(tmp_path / "rows.jsonl")
    assert again.trajectories == batch.trajectories
    assert again.advantages == batch.advantages and again.name == "equal"
    for row, trajectory, advantage in zip(
        rows.for_peer(again), batch.trajectories, batch.advantages, strict=True
    ):
        assert row["prompt"] + row["completion"] == trajectory.ids.tolist() and len(row["prompt"]) == 32
        assert [0] * 32 + row["mask"] == trajectory.loss_mask().tolist() and row["advantage"] == advantage


def test_recorded_rows_keep_their_groups_and_a_group_without_signal_has_advantage_0(tmp_path: Path) -> None:
    batch = rows.equal(900, groups=2, siblings=2)
    rows.write(batch, tmp_path / "step.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "step.jsonl").read_text().splitlines()]
    lines[1]["outcome"]["reward"] = 1.0
    (tmp_path / "step.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = rows.recorded(tmp_path / "step.jsonl")
    assert [t.ids.tolist() for t in found.trajectories] == [t.ids.tolist() for t in batch.trajectories]
    assert found.advantages[0] == -found.advantages[1] != 0 and found.advantages[2:] == [0.0, 0.0]


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8))
def test_distinct_prefixes(some: list[list[int]]) -> None:
    assert rows.distinct_prefixes(some) == len({tuple(r[:k]) for r in some for k in range(1, len(r) + 1)})


@pytest.mark.parametrize("num_rows", [384, 32, 16])
def test_every_setting_of_the_peer_takes_all_rows_in_one_update(num_rows: int) -> None:
    settings = bench_learner.settings_for(num_rows)
    assert len({setting.name for setting in settings}) == len(settings) >= 3
    assert all(setting.size * setting.count == num_rows for setting in settings)
    assert all(setting.count % setting.together == 0 for setting in settings)


class Writer:
    """Answers like a child that was asked for its gradients."""

    def __init__(self, gradients: dict[str, torch.Tensor]) -> None:
        self.name, self.gradients = "peer", gradients

    def ask(self, **command: Any) -> dict[str, float]:
        torch.save(self.gradients, command["gradients"])
        return {"grad_norm": sum(float(g.square().sum()) for g in self.gradients.values()) ** 0.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"b": torch.full((3,), 2.0005)}, "differ by 2.5e-04"),
        ({"c": torch.ones(1)}, "other parameters"),
    ],
)
def test_gradients_that_differ_end_the_benchmark(
    change: dict[str, torch.Tensor], message: str | None, tmp_path: Path
) -> None:
    mine = {"a": torch.zeros(2), "b": torch.full((3,), 2.0)}
    children: list[Any] = [Writer(mine), Writer(mine | change)]
    if message is None:
        assert bench_learner.disagreement(*children, tmp_path)["relative"] == 0
    else:
        with pytest.raises(RuntimeError, match=message):
            bench_learner.disagreement(*children, tmp_path)


def test_the_ratio_is_against_the_fastest_setting_round_by_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_learner.AutoConfig, "from_pretrained", lambda _: Namespace(vocab_size=900))
    times = {"rocstar": [1.0, 2.0, 1.0], "slow": [9.0, 9.0, 9.0], "fast": [3.0, 4.0, 2.5]}
    rounds = [
        {side: {"wall_s": t[k], "cpu_s": t[k] / 2, "peak_bytes": 1 << 20} for side, t in times.items()}
        for k in range(3)
    ]
    case = bench_learner.Case(
        model_name="m",
        model=tmp_path,
        batch=rows.equal(900, groups=1, siblings=2),
        tokens_per_microbatch=8,
        has_bar=True,
    )
    found = bench_learner.summary(case, ["slow", "fast"], [{}], rounds)
    assert found["best_of_trl"] == "fast" and found["speedup_wall"] == found["speedup_cpu"] == 2.5
    assert found["speedup_wall_range"] == [2.0, 3.0]
    assert found["sides"][0]["tokens_per_s"] == 256


def test_the_parts_of_our_step_are_the_whole(tmp_path: Path) -> None:
    rows.write(rows.equal(900, groups=1, siblings=2), tmp_path / "step.jsonl")
    row = {
        **{"time/step": 5.0, "time/generate": 2.0, "time/kv_wait": 0.5, "time/tool_wait": 0.5},
        **{"time/learn": 1.5, "time/publish": 0.1, "time/other": 0.4, "ledger/kept": 2, "step": 3},
    }
    step = bench_step_vs_trl.our_step(row, tmp_path / "step.jsonl")
    assert sum(step[name] for name in bench_step_vs_trl.PARTS) == pytest.approx(step["wall_s"]) == 5.0
    assert (step["policy_tokens"], step["response_tokens"], step["trajectories"]) == (96, 192, 2)
    told = bench_step_vs_trl.summary("rocstar", [step, step])
    assert told["trajectories_per_s"] == 0.4 and told["policy_tokens_per_trajectory"] == 48


def test_a_child_is_asked_in_turn_and_its_end_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    with Child("echo", Path(sys.executable), str(tmp_path / "echo.py"), [], cores="0") as child:
        assert child.hear() == {"ready": True}
        assert child.ask(do="a") == {"did": "a"} and child.ask(do="b") == {"did": "b"}
        with pytest.raises(ChildError, match="out of everything"):
            child.ask(do="die")


class Grader:
    """The confined sandbox beside the bare worker; says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[ExecRequest] = []

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        self.asked.append(request)
        return ok("graded")


async def test_rocstar_with_the_peers_tool_tells_the_policy_the_same_and_grades_confined() -> None:
    programs = {
        "print(6 * 7)": (True, "42"),
        "x = 1": (True, tool.NOTHING),
        "1 / 0": (False, "ZeroDivisionError: division by zero"),
    }
    grader = Grader()
    sandbox = our_step.BareSandbox(programs.__getitem__, grader)
    for code, (fine, told) in programs.items():
        result = await sandbox.run(ExecRequest(code=code))
        assert (result.status is Status.OK, result_text(result, "brief")) == (fine, told)
        assert result.isolation == "none"
    assert not grader.asked
    graded = ExecRequest(code="print('graded')", flavour=VERIFIER_FLAVOUR)
    assert (await sandbox.run(graded)).stdout == "graded" and grader.asked == [graded]
    batch = [ExecRequest(code="print(6 * 7)"), graded]
    assert [(k, r.stdout) async for k, r in sandbox.run_batch(batch)] == [(0, "42"), (1, "graded")]


def test_the_bar_takes_rocstar_in_its_sandbox_and_the_peer_with_its_bare_worker() -> None:
    speeds = {
        "rocstar": 1.0,
        "rocstar ahead": 2.0,
        "rocstar bare": 9.0,
        "a": 0.5,
        "b": 0.4,
        "b confined": 8.0,
    }
    sides = [{"side": side, "trajectories_per_s": speed} for side, speed in speeds.items()]
    assert bench_step_vs_trl.fastest(sides, is_ours=True)["side"] == "rocstar ahead"
    assert bench_step_vs_trl.fastest(sides, is_ours=False)["side"] == "a"
    for cores in ("1", "0,1"):
        *_, last = bench_step_vs_trl.our_ways(cores)
        assert last == "rocstar bare"
