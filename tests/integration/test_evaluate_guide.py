"""Every command of docs/guide/evaluate.md does what it says, in order, in this process.

A tiny run is runs/mine, two tosses are MATH-500, and a file `quickstart` goes before the shipped recipe.
"""

import json
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.evaluation.benchmarks import benchmark
from rocstar.train.evaluation.sets import evaluation_sets
from rocstar.train.learner import checkpoint
from rocstar.train.recipe.load import parse_recipe

from ..train.test_guides import blocks

SHORT = ["--engine.max_running=8", "--eval.0.samples_per_task=2", "--eval.0.max_response_tokens=100"]
TOSSES = [{"problem": "Toss 10", "answer": "1"}, {"problem": "Toss 11", "answer": "2"}]


def commands() -> list[list[str]]:
    """Each line of the guide's blocks for a shell, after `rocstar`."""
    texts = [block.text for block in blocks("evaluate.md") if block.language == "bash"]
    words = [shlex.split(line, comments=True) for text in texts for line in text.splitlines()]
    assert all(each[:2] == ["rocstar", "eval"] for each in words)
    return [each[1:] for each in words]


@pytest.fixture
def two_tosses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of two questions in the place of the one that the guide asks."""
    changes = {"title": "Tosses", "num_questions": 2, "digest": "", "answers": ""}
    monkeypatch.setitem(benchmark.SETS, "math500", benchmark.SETS["math500"] | changes)


@pytest.fixture
def place(workshop: Any, finished: Path) -> Iterator[Any]:
    """The folder in which the guide is followed; what it writes is taken away."""
    mine = workshop.directory / "runs" / "mine"
    shutil.copytree(finished, mine)
    checkpoint.step_directory(mine, 4).rename(checkpoint.step_directory(mine, 24))
    shutil.copy(workshop.recipe, workshop.directory / "quickstart")
    rows = "".join(json.dumps(row) + "\n" for row in TOSSES)
    (workshop.directory / "math500.jsonl").write_text(rows)
    yield workshop
    for name in ("runs/mine", "evaluated", "evaluated_math", "judged_again"):
        shutil.rmtree(workshop.directory / name, ignore_errors=True)
    for name in ("quickstart", "math500.jsonl"):
        (workshop.directory / name).unlink()


@pytest.mark.usefixtures("two_tosses")
def test_every_command_of_the_guide_runs(place: Any) -> None:
    told = {}
    for words in commands():
        makes = not any(word in ("--rescore", "--verify", "--check-set") for word in words)
        ended = place.main(*words, *(SHORT if makes else []))
        assert ended.returncode == 0, (words, ended.stderr)
        told[" ".join(words[1:])] = ended.stdout
    assert len(told) == 5
    names = ["attempts", "config.toml", "manifest.json", "report.html", "results.json"]
    for name in ("evaluated", "evaluated_math", "judged_again"):
        assert sorted(path.name for path in (place.directory / name).iterdir()) == names
    results = json.loads((place.directory / "evaluated_math" / "results.json").read_text())["sets"]
    assert list(results) == ["math500"] and results["math500"]["num_questions"] == len(TOSSES)
    assert "2 of 2 golds found right" in told["--check-set math500 --path math500.jsonl"]
    assert "2 of 2 near misses found wrong" in told["--check-set math500 --path math500.jsonl"]
    assert "0 verdicts changed" in told["--rescore evaluated --out judged_again"]
    assert told["--verify evaluated"].startswith("nothing differs")


def test_the_sets_of_the_guide_are_a_recipe() -> None:
    (text,) = [block.text for block in blocks("evaluate.md") if block.language == "toml"]
    recipe = parse_recipe(tomllib.loads(text), where="the guide")
    assert [config.label for config in recipe.eval] == ["aime24", "math500", "mine"]
    aime = evaluation_sets(recipe, {config.label: () for config in recipe.eval})[0]
    assert (aime.samples, aime.temperature, aime.max_response_tokens, aime.max_turns) == (16, 0.6, 30_000, 30)
    assert "16 samples, temperature 0.6, 30,000 tokens, 30 turns" in text
