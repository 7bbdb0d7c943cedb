"""Paths of a recipe start at its folder, those of options at the current directory; names stay names."""

import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.load import load_recipe, to_toml
from rocstar.train.recipe.paths import missing_path_hint, resolve_paths

RECIPE = """
[model]
path = "model"
template = "mine.jinja"

[sft]
steps = 1
data = "chat.jsonl"

[sft.demonstration_tasks]
source = "../shared/tasks.jsonl"

[[stages]]
steps = 1
max_response_tokens = 10
max_turns = 1
data = { source = "data/tasks.jsonl" }

[[stages]]
steps = 1
max_response_tokens = 10
max_turns = 1

[[eval]]
data = { source = "hub:openai/gsm8k:main" }
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory; the recipe lies in `mine/` below it."""
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "my.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths_of(recipe: Recipe) -> list[Any]:
    model, sft, data = recipe.model, recipe.sft, recipe.stages[0].data
    assert sft.demonstration_tasks and data and recipe.eval[0].data
    sources = [each.source for each in (sft.demonstration_tasks, data, recipe.eval[0].data)]
    return [model.path, model.template, sft.data, *sources]


def test_paths_in_the_file_start_at_its_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = here / "mine"
    expected = [
        *(str(mine / name) for name in ("model", "mine.jinja", "chat.jsonl")),
        str(here / "shared" / "tasks.jsonl"),
        str(mine / "data" / "tasks.jsonl"),
        "hub:openai/gsm8k:main",
    ]
    assert paths_of(load_recipe("mine/my.toml")) == expected
    monkeypatch.chdir(mine)
    assert paths_of(load_recipe("my.toml")) == expected
    (here / "resolved.toml").write_text(to_toml(load_recipe("my.toml")))
    monkeypatch.chdir("/")
    assert paths_of(load_recipe(here / "resolved.toml")) == expected, "it loads from anywhere"


def test_paths_of_options_start_at_the_current_directory(here: Path) -> None:
    (here / "model").mkdir()
    options = [
        "--model.path=model",
        "--model.template=other.jinja",
        "--sft.data=chat.jsonl",
        "--sft.demonstration_tasks={ source = 'a.jsonl' }",
        "--stages.00.data.source=data/tasks.jsonl",
        "--eval.data.source=../b.jsonl",
    ]
    names = ("model", "other.jinja", "chat.jsonl", "a.jsonl", "data/tasks.jsonl")
    assert paths_of(load_recipe("mine/my.toml", options)) == [
        *(str(here / name) for name in names),
        str(here.parent / "b.jsonl"),
    ]
    recipe = load_recipe("mine/my.toml", ["--eval.data.size=3", "--model.dtype=bfloat16"])
    assert recipe.model.path == str(here / "mine" / "model"), "the option sets another field"


@pytest.mark.parametrize("path", ["scratch", "Qwen/Qwen3-14B-Base", "gone"])
@pytest.mark.parametrize("template", ["model", "compact", "unknown"])
def test_names_stay_names(here: Path, path: str, template: str) -> None:
    text = RECIPE.replace('"model"', f'"{path}"').replace("mine.jinja", template)
    text = text.replace("chat.jsonl", "demonstrations").replace("../shared/tasks.jsonl", "hub:o/n")
    (here / "mine" / "my.toml").write_text(text)
    recipe = load_recipe("mine/my.toml")
    assert paths_of(recipe)[:4] == [path, template, "demonstrations", "hub:o/n"]


def test_what_only_the_current_directory_has_is_not_taken_and_the_error_says_so(here: Path) -> None:
    """No silent fallback: neither for a file nor for a model that could be a hub name."""
    (here / "mine" / "model").rmdir()
    (here / "model").mkdir()
    (here / "named").touch()
    (here / "data").mkdir()
    (here / "data" / "tasks.jsonl").touch()
    text = RECIPE.replace("mine.jinja", "named")
    (here / "mine" / "my.toml").write_text(text)
    model, template, *_ = paths_of(recipe := load_recipe("mine/my.toml"))
    assert (model, template) == (str(here / "mine" / "model"), str(here / "mine" / "named"))
    assert missing_path_hint(Path(model)).startswith(", but 'model' does in the current directory: paths in a recipe")
    assert recipe.stages[0].data and "'data/tasks.jsonl'" in missing_path_hint(Path(recipe.stages[0].data.source))
    assert missing_path_hint(Path(recipe.sft.data)) == missing_path_hint(Path("data")) == ""


@pytest.mark.parametrize(
    "raw",
    [
        {"stages": 1, "eval": [], "sft": {"demonstration_tasks": "x"}, "model": {"path": 5}},
        {"stages": ["x", {"data": 1}, {"data": {"source": ["a"]}}], "eval": [{"data": {}}]},
    ],
)
def test_what_has_not_a_recipes_form_is_left_to_its_validation(raw: dict[str, Any], tmp_path: Path) -> None:
    before = json.dumps(raw)
    resolve_paths(raw, tmp_path, ["--stages.x=1", "nonsense"])
    assert json.dumps(raw) == before
