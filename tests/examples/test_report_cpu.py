"""examples/report_cpu in its smallest form: from raw rows to the page, in one command, and gone on with."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ..needs import modules
from .imported import imported, lines, run

SMALLEST = (
    *("--exam=2", "--problems=8", "--conversations=48", "--run.threads=1", "--sft.steps=4"),
    *("--sft.warmup_steps=0", "--sft.batch_size=4", "--model.scratch.vocab_size=400"),
    *("--model.scratch.hidden_size=32", "--model.scratch.num_layers=1", "--model.scratch.num_heads=2"),
    *("--model.scratch.num_kv_heads=1", "--model.scratch.intermediate_size=32", "--rl.tasks_per_step=2"),
    *("--rl.rollouts_per_task=4", "--rl.group_size=2", "--engine.max_running=16"),
    *(f"--stages.{k}.{field}" for k in range(3) for field in ("steps=1", "max_response_tokens=24")),
    *("--stages.2.filter_rollouts=1", "--eval.0.samples_per_task=1"),
)


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with imported("report_cpu", "raw") as module:
        yield module


@pytest.fixture(scope="module")
def made(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command leaves."""
    modules("reasoning_gym")
    out = tmp_path_factory.mktemp("report") / "out"
    assert run(example, ["--out", str(out), *SMALLEST]) == 0
    return out


def test_every_phase_leaves_its_part(made: Path) -> None:
    summary = json.loads((made / "summary.json").read_text())
    dropped = summary["data"]["tasks"]["dropped"]
    assert {"overlap", "labels_disagree", "duplicate"} & dropped.keys(), dropped
    assert summary["data"]["conversations"]["kept"]["demonstrator"] > 0
    stages = [row["stage"] for row in lines(made / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert stages == ["stage1", "stage2", "stage3"]
    assert [one["num_questions"] for one in summary["exam"]["sets"]] == [12]
    assert summary["analysis"]["trajectories"] == 12 and len(summary["analysis"]["says"]) > 5
    for page in ("analysis.html", "tasks.svg", "run/report.html"):
        assert (made / page).stat().st_size > 1000


def plain(text: str) -> str:
    """A question without its typesetting."""
    return "".join(text.replace("$", "").replace("\\times", "*").split())


def test_no_task_is_a_question_of_the_exam(made: Path) -> None:
    asked = {plain(row["problem"]) for row in lines(made / "raw" / "exam.jsonl")}
    raw = {plain(row["problem"]) for row in lines(made / "raw" / "problems.jsonl")}
    kept = {plain(row["question"]) for row in lines(made / "tasks" / "tasks.jsonl")}
    assert asked & raw and not asked & kept


def test_what_is_there_is_not_made_again(example: ModuleType, made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (made / "run").rglob("*") if path.is_file()}
    built = (made / "tasks" / "tasks.jsonl").stat().st_mtime_ns
    assert run(example, ["--out", str(made), *SMALLEST]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (made / "tasks" / "tasks.jsonl").stat().st_mtime_ns == built


def test_a_verb_that_fails_ends_the_command(example: ModuleType, made: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "raw").mkdir(parents=True)
    for file in (made / "raw").iterdir():
        (tmp_path / "out" / "raw" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "out" / "raw" / "problems.jsonl").write_text('{"text": "no problem"}\n')
    assert run(example, ["--out", str(tmp_path / "out"), *SMALLEST]) == 2
    assert not (tmp_path / "out" / "run").exists()
