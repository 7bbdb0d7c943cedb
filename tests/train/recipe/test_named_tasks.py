"""Tasks that are named once: what a name stands for, what an option changes, which names are refused."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe, parse_recipe, to_toml

RECIPE = """
[tasks.sums]
source = "sums.jsonl"
size = 50

[tasks.puzzles]
source = "reasoning_gym"
size = 40
seed = 1
families = { gcd = { max_value = 99 } }

[sft]
steps = 1
demonstration_tasks = { tasks = "puzzles", seed = 1000 }

[[stages]]
steps = 1
max_response_tokens = 9
max_turns = 1
data = "sums"

[[eval]]
data = { tasks = "puzzles", size = 11, limit = 8 }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "mine" / "my.toml"
    written.parent.mkdir()
    written.write_text(RECIPE)
    return written


def places(recipe: Recipe) -> list[Any]:
    return [recipe.sft.demonstration_tasks, recipe.stages[0].data, recipe.eval[0].data]


def test_a_name_stands_for_its_table(path: Path) -> None:
    shown, trained, held_out = places(load_recipe(path))
    assert (shown.source, shown.size, shown.seed) == ("reasoning_gym", 40, 1000)
    assert (trained.source, trained.size) == (str(path.parent / "sums.jsonl"), 50)
    assert (held_out.size, held_out.limit, held_out.seed) == (11, 8, 1)
    assert held_out.families == shown.families == {"gcd": {"max_value": 99}}


def test_no_name_is_left_beside_a_run(path: Path) -> None:
    """Each place has the table itself: `--resume` compares the tables that were used."""
    recipe = load_recipe(path)
    written = tomllib.loads(to_toml(recipe))
    assert "tasks" not in written and "tasks" not in written["eval"][0]["data"]
    assert parse_recipe(written, where="test") == recipe and recipe.tasks == {}


def test_an_option_changes_one_place_or_the_named_table(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    _, trained, held_out = places(load_recipe(path, ["--stages.0.data.size=7", "--eval.data.limit=3"]))
    assert (trained.size, held_out.limit) == (7, 3) and trained.source.endswith("sums.jsonl")
    shown, _, held_out = places(load_recipe(path, ["--tasks.puzzles.size=5"]))
    assert (shown.size, held_out.size) == (5, 11)
    _, trained, held_out = places(load_recipe(path, ["--stages.0.data=puzzles", "--eval.data.tasks=sums"]))
    assert trained.families and held_out.source.endswith("mine/sums.jsonl") and held_out.size == 11
    _, trained, _ = places(load_recipe(path, ["--tasks.sums.source=other.jsonl"]))
    assert trained.source == str(tmp_path / "other.jsonl"), "an option's path starts at the current directory"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"eval": [{"data": "sum"}]}, "eval.0.data = 'sum' is not in [tasks]; did you mean 'sums'?"),
        ({"eval": [{"data": {"tasks": 3}}]}, "eval.0.data = 3 is not in [tasks]"),
        ({"eval": [{"data": "x"}], "tasks": {}}, "is not in [tasks]; add [tasks.x]"),
        (
            {"eval": [{"data": {"tasks": "sums", "sorce": 1}}]},
            "'eval.0.data.sorce'; did you mean 'eval.0.data.source'?",
        ),
        ({"tasks": {"sums": {"source": "a", "sise": 1}}}, "'tasks.sums.sise'; did you mean 'tasks.sums.size'?"),
        ({"tasks": {"sums": {}}}, "tasks.sums.source is missing"),
        ({"tasks": {"source": {"source": "a", "sise": 1}}}, "'tasks.source.sise'; did you mean 'tasks.source.size'?"),
        ({"tasks": {"sums": {"tasks": "sums"}}}, "unknown key 'tasks.sums.tasks'"),
        ({"tasks": {"sums": 3}}, "tasks.sums"),
        ({"tasks": 3}, "tasks = 3"),
    ],
)
def test_a_wrong_name_or_table_is_told_once(change: dict[str, Any], words: str) -> None:
    raw = {"tasks": {"sums": {"source": "a.jsonl"}}, "eval": [{"data": "sums"}], **change}
    with pytest.raises(ConfigError) as refused:
        parse_recipe(raw, where="r.toml")
    told = str(refused.value)
    assert told.startswith("r.toml: ") and told.count(words) == 1 and "\n" not in told
    assert told.count("; did you mean") <= 1
