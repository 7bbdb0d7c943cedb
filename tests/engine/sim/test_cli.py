"""`rocstar sim` as a user meets it: table, JSON, and one line for each mistake."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.progress.status import StatusLine
from rocstar.engine.scheduling.policies import POLICIES
from rocstar.engine.sim import cli
from rocstar.engine.sim.cli import main
from rocstar.engine.sim.simulate import simulate

SMALL = ["--workload", "paper", "--tasks", "2", "--siblings", "4", "--replicas", "2", "--kv-tokens", "40000"]


def test_table_names_every_policy_and_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    out, err = capsys.readouterr()
    assert all(name in out for name in POLICIES) and "No policy can take less than" in out
    assert err == "", "no progress where there is no terminal"


def test_forks_add_trajectories(capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for forks in ([], ["--fork-rate", "1", "--fork-width", "3"]):
        assert main([*SMALL, *forks, "--policies", "predictive", "--json"]) == 0
        counts.append(json.loads(capsys.readouterr().out)["trajectories"])
    assert counts[0] == 8 and counts[1] > 8 and counts[1] % 2 == 0


@pytest.mark.parametrize("history", [[], ["--cold"]])
def test_who_watches_sees_how_far_the_policies_are(
    history: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trajectories of all policies, the earlier step's included: the count only grows, up to all."""
    status = StatusLine(file=io.StringIO(), clock=lambda: 0.0)
    seen: list[tuple[str, int, int]] = []

    def watched(*arguments: Any, on_left: Callable[[int, int], None], **options: Any) -> Any:
        def looked(left: int, total: int) -> None:
            on_left(left, total)
            (work,) = status.progress.works
            assert work.unit == "trajectories"
            seen.append((work.what, work.done, work.total))

        return simulate(*arguments, on_left=looked, **options)

    monkeypatch.setattr(cli, "StatusLine", lambda: status)
    monkeypatch.setattr(cli, "simulate", watched)
    assert main([*SMALL, *history, "--policies", "predictive,static"]) == 0
    each = 8 if history else 12
    assert [done for _, done, _ in seen] == list(range(1, 2 * each + 1))
    assert {total for _, _, total in seen} == {2 * each}
    assert [seen[0][0], seen[-1][0]] == ["predictive, policy 1 of 2", "static, policy 2 of 2"]
    assert capsys.readouterr().err == ""


OWN = """
from rocstar.engine.scheduling.policies.routed import Static

POLICIES = {"mine": Static}
"""


def test_a_policy_of_ones_own_is_simulated_beside_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    assert main([*SMALL, "--json", "--peers", str(file), "--policies", "mine,static"]) == 0
    mine, static = json.loads(capsys.readouterr().out)["policies"]
    assert (mine["policy"], static["policy"]) == ("mine", "static")
    assert mine["makespan_s"] == static["makespan_s"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("POLICIES = [1]", "must define POLICIES"),
        ("POLICIES = {'mine': 3}", "must define POLICIES"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("1 +", "SyntaxError"),
    ],
)
def test_a_file_without_policies_is_one_line(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    assert main([*SMALL, "--peers", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"rocstar sim: --peers {file}: ") and message in err
    assert err.count("\n") == 1


def test_json_holds_what_the_table_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json", "--policies", "predictive,round_robin"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [p["policy"] for p in result["policies"]] == ["predictive", "round_robin"]
    for policy in result["policies"]:
        assert policy["ratio"] == policy["makespan_s"] / result["bound"]["seconds"] >= 1
        assert 0 < policy["utilisation"] <= 1 and 0 < policy["kv_occupancy"] <= 1


def test_a_cost_model_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = {"forward_s": 1.0, "request_s": 0.0, "context_token_s": 0.0, "prefill_token_s": 0.0, "prefill_pair_s": 0.0}
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(cost))
    arguments = [*SMALL, "--policies", "round_robin", "--json", "--cost", str(path)]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["policies"][0]["makespan_s"] > 1000
    path.write_text(json.dumps({**cost, "forward": 1}))
    assert main(arguments) == 2
    assert "unexpected keyword argument 'forward'; give a JSON file of forward_s" in capsys.readouterr().err
