"""The court: the test keeps its level, curves and budgets add up, runs are shared, resumed and not repeated."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.court import __main__ as court
from benchmarks.court import budget, curves, simulation, verdicts
from benchmarks.court.decision import decide, is_rejected
from benchmarks.court.question import Question, read_question
from benchmarks.court.runs import Runs
from benchmarks.gpu import court as gpu_court
from benchmarks.report import command
from rocstar.engine.record.reading import write_records
from rocstar.train.record.callbacks import StopRun
from tests.patience import PATIENCE_S

QUESTIONS = Path(court.__file__).parent / "questions"
LOOKS = (4, 6, 8)
COMMIT = "c0" * 20
QUESTION = """
question = "Is it better?"
recipe = "recipe.toml"
secondary = ["heldout/solved"]
budget = { tokens = 150 }
primary = { measure = "heldout/solved", at = "mean" }
stopping = { looks = [5, 8] }
fields = { rl.lr = 0.5, sft.lr = 0.25 }

[arms.plain]

[arms.good]
rl.roc_mode = "uniform"
"""


@pytest.mark.parametrize("alpha", [0.05, 0.2])
@pytest.mark.parametrize("kind", ["normal", "equal", "half_are_zero", "one_is_huge"])
def test_at_most_alpha_of_all_signs_are_ever_rejected(kind: str, alpha: float) -> None:
    rng = np.random.default_rng(3)
    sizes = {
        "normal": rng.normal(size=8),
        "equal": np.ones(8),
        "half_are_zero": np.tile([0.0, 1.0], 4),
        "one_is_huge": np.array([1.0, 2, 3, 4, 5, 6, 7, 1000]),
    }[kind]
    signs = np.array(list(itertools.product([1, -1], repeat=8)))
    rejected = sum(is_rejected(list(row * sizes), LOOKS, LOOKS[-1], alpha) for row in signs)
    assert rejected <= alpha * len(signs)
    if kind == "normal":
        assert rejected > 0.8 * alpha * len(signs)


def test_an_early_look_spends_its_part_alone() -> None:
    """5 of 8 seeds have 5% x 5/8 = 3.1%, less than the 2 of 32 patterns that agree in every sign; 6 have 3.75%."""
    assert not is_rejected([1.0] * 5, (5,), 8, 0.05)
    assert is_rejected([1.0] * 6, (5, 6), 8, 0.05)
    assert not is_rejected([1.0] * 6, (6,), 8, 0.04) and is_rejected([1.0] * 6, (6,), 6, 0.04)
    assert decide([1.0] * 8, (5, 6, 8), 0.05).seeds == 6


def test_a_decision_has_a_sign_and_an_interval_that_agrees() -> None:
    differences = [0.2, 0.1, 0.3, 0.15, 0.25, 0.05, 0.2, 0.1]
    one = decide([-d for d in differences], LOOKS, 0.05)
    assert (one.verdict, one.seeds) == ("lower", 6)
    low, high = one.interval
    assert low < one.difference < high < 0
    for shift, inside in ((low - 1e-6, False), (low + 1e-6, True), (high - 1e-6, True), (high + 1e-6, False)):
        assert is_rejected([-d - shift for d in differences[:6]], (4, 6), 8, 0.05) is not inside
    assert decide([-d for d in differences], (8,), 0.05).interval[1] < 0


def test_too_few_seeds_say_nothing() -> None:
    one = decide([0.5, 0.5], (2, 4), 0.05)
    assert (one.verdict, one.difference, one.interval) == ("undecided", 0.5, (-math.inf, math.inf))


@pytest.mark.parametrize(("better", "word"), [("higher", "better"), ("lower", "worse")])
def test_a_verdict_knows_what_is_better(question: Question, better: str, word: str) -> None:
    primary = question.primary.model_copy(update={"better": better})
    one = decide([0.1] * 8, (8,), 0.05)
    assert verdicts.word(question.model_copy(update={"primary": primary}), one) == word
    assert verdicts.word(question, decide([0.1, -0.1] * 4, (8,), 0.05)) == "undecided"


@pytest.fixture
def question(tmp_path: Path) -> Question:
    (tmp_path / "q.toml").write_text(QUESTION)
    (tmp_path / "recipe.toml").write_text("[model]\npath = 'scratch'\n")
    return read_question(tmp_path / "q.toml")[0]


@pytest.mark.parametrize("law", simulation.LAWS)
def test_courts_without_a_difference_find_one_in_at_most_5_percent(law: str, question: Question) -> None:
    more = question.model_copy(update={"arms": {**question.arms, "c": {}, "d": {}}})
    anything, _ = simulation.found(more, law, courts=400, seed=1)
    assert anything <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_a_large_difference_is_found(question: Question) -> None:
    _, power = simulation.found(question, "normal", courts=50, seed=1, effect=4.0)
    assert power > 0.9
    assert 0.5 < simulation.detectable(question, courts=100, seed=1) < 2.5


def attempt(*turns: tuple[int, list[str]], correct: bool = True, answers: int = 1) -> dict[str, Any]:
    made, start = [], 0
    for length, statuses in turns:
        calls = [{"status": status, "is_error": status != "ok"} for status in statuses]
        made.append({"start": start, "end": start + length, "calls": calls})
        start += length + 10
    return {"outcome": {"reward": 1.0, "is_correct": correct}, "num_answers": answers, "turns": made}


def test_measures_count_calls_and_tokens_by_what_came_before() -> None:
    attempts = [
        attempt((10, ["error"]), (20, ["error"]), (40, ["ok"]), (5, [])),
        attempt((10, ["ok"]), (50, ["malformed_call"]), (5, []), correct=False, answers=2),
        attempt((10, ["not_executed"]), correct=False, answers=0),
    ]
    found = curves.measures(attempts)
    assert found["solved"] == pytest.approx(1 / 3)
    assert (found["errors_in_correct"], found["errors"]) == pytest.approx((2 / 3, 3 / 5))
    assert found["recovered"] == 1.0, "an error in a later turn is none of the first"
    assert found["errors_first"] == pytest.approx(1000 / 30)
    assert found["errors_after_error"] == pytest.approx(1000 / 60)
    assert found["errors_after_ok"] == pytest.approx(1000 / 50)
    assert (found["misformed"], found["tokens"]) == pytest.approx((2000 / 10, 150 / 3))


def test_a_curve_is_read_at_its_last_evaluation() -> None:
    curve = [{"tokens": t, "cpu_s": t / 10, "m": m} for t, m in ((0, 0.0), (100, 0.4), (300, 0.8), (400, 0.2))]
    assert curves.at_end(curve, "m", "tokens", 380) == 0.2
    assert curves.at_end(curve, "m", "cpu_s", 42) == 0.2
    other = [{"tokens": 0.0, "n": 0.1}, {"tokens": 100.0}, {"tokens": 400.0, "n": 0.5}]  # n has its own steps
    assert curves.points(other, "n", "tokens", 400) == [(0.0, 0.1), (400.0, 0.5)]
    assert curves.mean_until(curve, "m", "tokens", 380) == pytest.approx((100 * 0.2 + 200 * 0.6 + 100 * 0.5) / 400)
    assert curves.at_end(curve[:1], "m", "tokens", 380) == 0.0  # an arm without steps
    for far in (300, 600):
        with pytest.raises(ValueError, match=f"ends at 400 tokens of {far}"):
            curves.at_end(curve, "m", "tokens", far)


class Started:
    def __init__(self, directory: Path, step: int) -> None:
        self.directory, self.step = directory, step


def test_a_budget_stops_at_the_nearest_step_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    first = budget.Budget(tokens=250)
    first.on_run_start(Started(tmp_path, 0))  # type: ignore[arg-type]
    first.on_step({"step": 1, "tokens/generated": 80})
    first.on_step({"step": 2, "tokens/generated": 80})
    again = budget.Budget(tokens=250)
    again.on_run_start(Started(tmp_path, 1))  # type: ignore[arg-type]
    again.on_step({"step": 2, "tokens/generated": 100})
    assert not budget.is_spent(budget.read_spent(tmp_path), {"tokens": 250})  # 180, and then perhaps 280
    with pytest.raises(StopRun, match="230 tokens of 250"):  # 230, and then perhaps 280
        again.on_step({"step": 3, "tokens/generated": 50})
    rows = budget.read_spent(tmp_path)
    assert [(row["step"], row["tokens"]) for row in rows] == [(1, 80), (2, 180), (3, 230)]
    assert budget.is_spent(rows, {"tokens": 250}) and not budget.is_spent([], {"tokens": 250})


def test_cpu_seconds_leave_out_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([5.0, 7.0, 8.0, 90.0, 93.0])
    monkeypatch.setattr(budget, "cpu_of_tree", lambda _: next(clock))
    one = budget.Budget(cpu_s=5)
    one.on_run_start(Started(tmp_path, 0))  # type: ignore[arg-type]
    one.on_evaluation({})
    one.on_step({"step": 1, "tokens/generated": 9})
    one.on_step({"step": 2, "tokens/generated": 9})
    one.on_evaluation({})
    with pytest.raises(StopRun, match="6 cpu_s of 5"):
        one.on_step({"step": 3, "tokens/generated": 9})


def test_the_cpu_of_a_tree_has_that_of_its_children() -> None:
    before = budget.cpu_of_tree(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert budget.cpu_of_tree(os.getpid()) >= before + 0.25


def fake_train(words: Sequence[str], log: Path) -> int:
    """A trainer that takes no time. The good arm's seed 1 ends badly behind its first step until it is resumed."""
    out = Path(words[list(words).index("--output-dir") + 1])
    out.mkdir(parents=True, exist_ok=True)
    with (out / "commands").open("a") as file:
        file.write(json.dumps(words) + "\n")
    is_good, is_arm = "good" in str(out), any("budget" in word for word in words)
    fails = is_good and out.name == "seed_1" and "--resume" not in words
    status = "failed" if fails else "stopped" if is_arm else "complete"
    (out / "manifest.json").write_text(json.dumps({"starts": [{"status": status, "commit": COMMIT, "dirty": False}]}))
    for name in ("trajectories", "evaluations/step_000001.partial"):  # the latter is left by a kill
        (out / name).mkdir(parents=True, exist_ok=True)
    spent = [{"step": step, "tokens": 75 * step, "cpu_s": step} for step in (1, 2)[: 2 - fails]]
    (out / "spent.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spent))
    for step in (0, 2):
        folder = out / "evaluations" / f"step_{step:06d}" / "attempts"
        right = 20 + int(out.name.removeprefix("seed_")) + 20 * (is_good and step > 0)
        write_records(
            folder / "heldout.jsonl",
            ({"v": 1, "outcome": {"is_correct": k < right}, "num_answers": 1, "turns": []} for k in range(64)),
        )
    return 9 * fails


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Holds the court of QUESTION on a trainer that takes no time; returns the exit code."""
    (tmp_path / "q.toml").write_text(QUESTION)
    (tmp_path / "recipe.toml").write_text("[model]\npath = 'scratch'\n")

    def hold(*words: str) -> int:
        given = [str(tmp_path / "q.toml"), "--runs", str(tmp_path / "runs"), *words]
        monkeypatch.setattr(sys, "argv", ["court", *given])
        return court.main(fake_train)

    return hold


def commands(tmp_path: Path) -> dict[str, int]:
    files = (tmp_path / "runs").rglob("commands")
    return {str(file.parent.relative_to(tmp_path / "runs")): len(file.read_text().splitlines()) for file in files}


def test_a_court_shares_cold_starts_goes_on_after_a_kill_and_decides(
    held: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="exit code 9"):
        held()
    assert held("--out", str(tmp_path / "r.json"), "--at-once", "3") == 0
    made = commands(tmp_path)
    assert sorted(made.values()) == [1] * 23 + [2], made
    assert sum(name.startswith("cold/") for name in made) == 8
    (again,) = (tmp_path / "runs/q/good/seed_1").glob("commands")
    assert "--resume" in json.loads(again.read_text().splitlines()[1])
    result = json.loads((tmp_path / "r.json").read_text())
    values = [one["value"] for one in result["claims"]]
    assert values == pytest.approx([10 / 64] * 3 + [0.0] * 3, abs=1e-6)
    assert result["claims"][0]["claim"].endswith("good minus plain, better")
    assert len(result["curves"]) == 16 and result["curves"][0]["heldout/solved"] == [20 / 64, 20 / 64]
    assert result["seeds"] == list(range(8)) and result["commit"] == COMMIT and result["commits"] == [COMMIT]
    printed = capsys.readouterr().out
    assert "| good | 8 | 0.523 | +0.156 [+0.156, +0.156] | better | 0.680 |" in printed
    assert "| start of the control |  | 0.367 |  |  | 0.367 |" in printed
    assert verdicts.table(*verdicts.read_verdicts(result)) in printed
    assert (tmp_path / "r.svg").read_text().startswith("<svg")
    (tmp_path / "runs/q/good/seed_2/curve.json").unlink()
    (tmp_path / "runs/q/good/seed_2/trajectories").mkdir()
    assert held() == 0 and commands(tmp_path) == made


def test_a_run_that_was_killed_in_its_last_evaluation_is_made_again(question: Question, tmp_path: Path) -> None:
    """Resumed, it would make a further step."""
    killed = tmp_path / "runs/q/plain/seed_0"
    killed.mkdir(parents=True)
    (killed / "manifest.json").write_text('{"starts": [{"status": "running"}]}')
    (killed / "spent.jsonl").write_text(
        '{"step": 1, "tokens": 75, "cpu_s": 1}\n{"step": 2, "tokens": 150, "cpu_s": 2}\n'
    )
    with Runs(question, tmp_path / "q.toml", tmp_path / "runs", 1, fake_train) as runs:
        ((_, future),) = runs.start(["plain"], [0])
        assert len(future.result()) == 2
    assert "--resume" not in json.loads((killed / "commands").read_text())


def test_two_courts_at_once_share_cold_starts_and_runs(question: Question, tmp_path: Path) -> None:
    go = threading.Event()

    def late(words: Sequence[str], log: Path) -> int:
        assert go.wait(PATIENCE_S)
        return fake_train(words, log)

    with (
        Runs(question, tmp_path / "q.toml", tmp_path / "runs", 4, late) as one,
        Runs(question, tmp_path / "q.toml", tmp_path / "runs", 4, late) as other,
    ):
        started = [future for made in (one, other) for _, future in made.start(list(question.arms), [0])]
        go.set()
        assert [len(future.result()) for future in started] == [2] * 4
    assert sorted(commands(tmp_path).values()) == [1, 1, 1]


def test_a_cold_start_has_the_fields_of_sft_and_an_arm_has_the_others(held: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        held()
    ((cold,),) = (file.read_text().splitlines() for file in (tmp_path / "runs/cold").glob("*/seed_0/commands"))
    words = json.loads(cold)
    assert {"--sft.lr=0.25", "--stages=[]", "--eval=[]", "--run.seed=0"} <= set(words)
    arm = json.loads((tmp_path / "runs/q/good/seed_0/commands").read_text())
    assert {"--rl.lr=0.5", '--rl.roc_mode="uniform"', "--sft.steps=0", "--run.seed=0"} <= set(arm)
    assert not {"--sft.lr=0.25", "--stages=[]"} & set(arm) and not any("--rl." in word for word in words)
    (start,) = (word for word in arm if word.startswith("--model.path="))
    assert Path(start.partition("=")[2]).parent.parent.name == "seed_0"


def test_cold_starts_begin_before_the_runs_that_wait_for_them(held: Any, tmp_path: Path) -> None:
    order: list[str] = []
    fake = lambda words, log: order.append(log.parent.name) or fake_train(words, log)  # noqa: E731
    question, _ = read_question(tmp_path / "q.toml")
    with Runs(question, tmp_path / "q.toml", tmp_path / "runs", 1, fake) as runs:
        for _, future in runs.start(["plain"], [0, 2]):
            future.result()
    assert order[2:] == ["plain", "plain"]


def test_a_gpu_court_packs_what_ended_for_another_machine(
    held: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held("--seeds", "1")
    words = ["--budget=0", f"--runs={tmp_path / 'runs'}", f"--out={tmp_path / 'out'}", str(tmp_path / "q.toml")]
    monkeypatch.setattr(sys, "argv", ["court.py", *words])
    assert gpu_court.main() == 1  # the question has seeds without runs
    with tarfile.open(tmp_path / "out/runs.tar.gz") as tar:
        tar.extractall(tmp_path / "elsewhere", filter="data")
    made = commands(tmp_path)
    assert held("--seeds", "1", "--runs", str(tmp_path / "elsewhere"), "--out", str(tmp_path / "r.json")) == 0
    assert json.loads((tmp_path / "r.json").read_text())["seeds"] == [0] and commands(tmp_path) == made
    assert not list((tmp_path / "elsewhere").rglob("commands"))


ENDED = """
import signal, subprocess, sys
from benchmarks.gpu import court

courts = []
def start(*_):
    if courts:
        signal.raise_signal(signal.SIGTERM)
    courts.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    return courts[0]

court.start = start
try:
    court.main()
except SystemExit as stop:
    print(stop.code, [one.returncode for one in courts])
"""


def test_a_gpu_court_that_is_ended_ends_the_courts_that_it_has_begun(tmp_path: Path) -> None:
    (tmp_path / "q.toml").write_text(QUESTION)
    questions = [str(tmp_path / "q.toml")] * 2
    words = [sys.executable, "-c", ENDED, f"--runs={tmp_path}", f"--out={tmp_path / 'out'}", *questions]
    ended = subprocess.run(words, cwd=gpu_court.ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.stdout, ended.returncode) == (f"1 [{-signal.SIGTERM}]\n", 0), ended.stderr


def test_a_court_on_its_first_seeds_decides_nothing_and_goes_on(held: Any, tmp_path: Path) -> None:
    held("--seeds", "1")
    with pytest.raises(SystemExit, match="exit code 9"):
        held("--seeds", "2")
    assert held("--seeds", "3", "--out", str(tmp_path / "r.json")) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["seeds"] == [0, 1, 2]
    assert result["claims"][0]["claim"].endswith("good minus plain, undecided")
    with pytest.raises(SystemExit, match="2"):
        held("--seeds", "0")
    assert sum(name.startswith("cold/") for name in commands(tmp_path)) == 3


def test_seeds_behind_a_verdict_do_not_change_it(
    held: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="exit code 9"):
        held()
    assert held() == 0
    assert held("--seeds", "10", "--out", str(tmp_path / "r.json")) == 0
    row = next(line for line in reversed(capsys.readouterr().out.splitlines()) if line.startswith("| good |"))
    assert "| good | 10 |" in row and "[+0.156, +0.156], first 8 seeds | better |" in row
    assert json.loads((tmp_path / "r.json").read_text())["seeds"] == list(range(10))


def test_a_question_that_changed_behind_its_first_run_is_refused(
    held: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        held()
    (tmp_path / "q.toml").write_text(QUESTION.replace("150", "160"))
    assert held() == 2
    assert "give the changed question another file name" in capsys.readouterr().err
    (tmp_path / "q.toml").write_text(QUESTION)
    (tmp_path / "recipe.toml").write_text("[model]\npath = 'scratch'\n[rl]\nlr = 1e-3\n")
    assert held() == 2


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("looks = [5, 8]", "looks = [8, 5]", "rising"),
        ("looks = [5, 8]", "looks = [5, 40]", "from 1 to 16"),
        ("{ tokens = 150 }", "{ tokens = 150, cpu_s = 2 }", "either tokens or cpu_s"),
        ("[arms.plain]", "[other]", "arms"),
        ("[arms.good]", "[arms.good", "not valid TOML"),
        ("secondary", "secondaries", "secondaries"),
        ("rl.roc_mode", "rl.rock_mode", "roc_mode"),
    ],
)
def test_a_bad_question_is_one_error(
    held: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, why: str
) -> None:
    (tmp_path / "q.toml").write_text(QUESTION.replace(old, new))
    assert held() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_a_question_that_is_not_there_is_one_error(
    held: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.toml").unlink()
    assert held() == 2
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted(QUESTIONS.glob("*.toml")), ids=lambda file: file.stem)
def test_the_arms_of_a_question_are_recipes(file: Path) -> None:
    assert read_question(file)[0].arms


def test_a_simulation_is_a_result(held: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question, _ = read_question(tmp_path / "q.toml")
    assert simulation.simulate("q", question, tmp_path / "s.json", courts=50) in (0, 1)
    written = json.loads((tmp_path / "s.json").read_text())
    assert len(written["claims"]) == len(simulation.LAWS) + 1


def test_a_result_names_the_command_of_a_package() -> None:
    program = str(Path(court.__file__))
    assert command([program, "q.toml", "--out=/elsewhere/r.json"]) == "python -m benchmarks.court q.toml --out=r.json"
    assert command(["benchmarks/same_bits.py", "--pairs", "2"]) == "python benchmarks/same_bits.py --pairs 2"
