"""examples/smollm2_words with a tiny random model in place of SmolLM2: every phase, and gone on with."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ..needs import modules
from .imported import imported, lines, run

SMALLEST = (
    *("--questions=2", "--heldout=6", "--unseen=1", "--pool=3", "--measured=2", "--attempts=2", "--conversations=12"),
    *("--run.threads=1", "--sft.steps=2", "--sft.warmup_steps=0", "--sft.batch_size=2", "--stages.0.steps=1"),
    *("--rl.tasks_per_step=2", "--rl.rollouts_per_task=4", "--rl.group_size=2", "--engine.max_running=16"),
    *("--stages.0.max_response_tokens=16", "--eval.0.samples_per_task=1", "--eval.1.samples_per_task=1"),
)


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with imported("smollm2_words", "kinds", "stories", "summary") as module:
        yield module


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A tiny model, a few questions, an empty folder."""
    modules("reasoning_gym")
    from rocstar.engine.chat.chat import load_template
    from rocstar.train.learner.scratch import build_model, train_tokenizer
    from rocstar.train.recipe.model_config import ScratchConfig

    folder = tmp_path_factory.mktemp("words")
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 32}
    template = load_template("compact", None)
    tokenizer = train_tokenizer(["how many 0123456789"], vocab_size=400, template=template)
    tokenizer.save_pretrained(folder / "model")
    build_model(ScratchConfig(**sizes), len(tokenizer), seed=0).save_pretrained(folder / "model")
    for part in ("train", "test"):
        asked = ["What is in both?", *(f"What is {k} and {k} in {part}?" for k in range(9))]
        rows = [{"problem": question, "answer": "7"} for question in asked]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [f"--gsm8k-{part}={folder / part}.jsonl" for part in ("train", "test")]
    return [f"--out={folder / 'out'}", f"--model={folder / 'model'}", *data, *SMALLEST]


@pytest.fixture(scope="module")
def made(example: ModuleType, arguments: list[str]) -> Path:
    """What the command leaves; a random model solves nothing, so it is told that it did."""
    out = Path(arguments[0].partition("=")[2])
    assert run(example, arguments) == 2, "nothing has signal"
    assert not (out / "run").exists()
    rollouts = lines(out / "rollouts.jsonl")
    for row in rollouts:
        if row["sibling"] == 0 and row["task"]["source"] in ("stories", "basic_arithmetic", "gsm8k_short"):
            row["outcome"] = {"reward": 1.0, "method": "exact", "is_correct": True}
    (out / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rollouts))
    assert run(example, arguments) == 0
    return out


def test_kinds_with_signal_are_trained_and_held_out(made: Path) -> None:
    trained = {"stories", "basic_arithmetic", "gsm8k_short"}
    assert {row["data_source"] for row in lines(made / "tasks" / "tasks.jsonl")} == trained
    assert {row["data_source"] for row in lines(made / "raw" / "heldout.jsonl")} == trained
    assert {row["data_source"] for row in lines(made / "raw" / "unseen.jsonl")} == {"products", "lcm"}
    rates = json.loads((made / "rates.json").read_text())
    assert rates["stories"]["rate"] == 0.5 and rates["leg_counting"]["rate"] == 0.0


def test_nobody_is_shown_what_is_asked(made: Path) -> None:
    exams = ("exam", "unseen", "gsm8k", "heldout")
    asked = {row["question"] for name in exams for row in lines(made / "raw" / f"{name}.jsonl")}
    shown = {row["messages"][0]["content"] for row in lines(made / "raw" / "conversations.jsonl")}
    taught = {row["question"] for row in lines(made / "raw" / "candidates.jsonl")}
    assert asked and shown and taught and not asked & (shown | taught)


def test_the_summary_tells_of_every_set(made: Path) -> None:
    summary = json.loads((made / "summary.json").read_text())
    assert summary["steps"] == 1 and summary["seconds"]["run"]["wall"] > 0
    assert {one["set"] for one in summary["compare"]["sets"]} == {"heldout", "unseen", "gsm8k"}
    assert summary["before"].keys() == summary["after"].keys() == {"heldout", "unseen", "gsm8k"}
    text = (made / "trajectories.md").read_text()
    assert text.count("before: ") == text.count("after: ") == 5


def test_what_is_there_is_not_made_again(example: ModuleType, arguments: list[str], made: Path) -> None:
    told = ("summary.json", "trajectories.md", "rates.json", "smollm2_words.toml", "heldout.jsonl")
    before = {p: p.stat().st_mtime_ns for p in made.rglob("*") if p.is_file() and p.name not in told}
    assert run(example, arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_every_demonstrated_program_is_what_it_says(example: ModuleType) -> None:
    modules("reasoning_gym")
    kinds = sys.modules["kinds"]
    for kind in kinds.DEMONSTRATED:
        for task in filter(kinds.demonstrable, kinds.problems(kind, 10, seed=3)):
            programs = kinds.programs_of(task)
            assert all(printed(program) == task.answer for program in programs.right), task
            assert any(printed(program) != task.answer for program in programs.wrong), task


def printed(program: str) -> str:
    """What a program of one `print` prints."""
    code = program.replace("\nprint(x)", "")
    if code.startswith("x = "):
        return str(eval(code.removeprefix("x = ")))
    return str(eval(code.removeprefix("print(")[:-1]))
