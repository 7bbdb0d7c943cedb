"""Fields that name code of the recipe's own: where it is looked for, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.recipe.own_code import load
from rocstar.train.recipe.toml_file import to_toml


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of a test stays on sys.path."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def recipe_in(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "my.toml").write_text(text, encoding="utf-8")
    return folder / "my.toml"


def test_the_folder_of_the_recipe_is_searched_first(tmp_path: Path) -> None:
    """json is installed, too; and the recipe beside a run finds the file from anywhere."""
    (tmp_path / "json.py").write_text("def score(attempt): return 'mine'\n")
    path = recipe_in(tmp_path, '[reward]\nkind = "json:score"\n')
    recipe = load_recipe(path)
    assert recipe.reward.kind == f"{tmp_path}/json.py:score"
    assert load(recipe.reward.kind, field="reward.kind")(None) == "mine"
    beside = recipe_in(tmp_path / "run", to_toml(recipe))
    assert load_recipe(beside).reward == recipe.reward
    assert sys.modules["json"].__name__ == "json" and hasattr(sys.modules["json"], "loads")


def test_an_installed_module_is_found_by_its_name(tmp_path: Path) -> None:
    recipe = load_recipe(recipe_in(tmp_path, '[reward]\nkind = "os.path:basename"\n'))
    assert load(recipe.reward.kind, field="reward.kind") is os.path.basename


def test_an_option_starts_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, word in (("here", "here"), ("recipe", "recipe")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"def score(attempt): return {word!r}\n")
    monkeypatch.chdir(tmp_path / "here")
    path = recipe_in(tmp_path / "recipe", '[rl]\nadvantage = "mine:score"\n')
    recipe = load_recipe(path, ["--reward.kind=mine:score"])
    assert load(recipe.reward.kind, field="f")(None) == "here"
    assert load(recipe.rl.advantage, field="f")(None) == "recipe"


@pytest.mark.parametrize(
    ("section", "told"),
    [
        (
            '[reward]\nkind = "maths"',
            "reward: kind = 'maths' is neither 'math' nor of the form 'module:function'",
        ),
        ("[reward]\nargs = { a = 1 }", "kind = 'math' takes none"),
        ("[reward]\ntimeout_s = 0", "reward.timeout_s = 0"),
        ('[rl]\nadvantage = "ppo"', "advantage = 'ppo' is not one of grpo, dr_grpo, rloo, reinforce_pp"),
    ],
)
def test_a_value_that_names_nothing_is_refused(tmp_path: Path, section: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_recipe(recipe_in(tmp_path, section))
    assert told in str(error.value)


def test_arguments_are_written_back_as_they_were(tmp_path: Path) -> None:
    args = '{ words = ["a", "b"], deep = { x = 1.5, on = true }, "a key" = "v" }'
    recipe = load_recipe(recipe_in(tmp_path, f'[reward]\nkind = "os.path:join"\nargs = {args}\n'))
    assert recipe.reward.args == {"words": ["a", "b"], "deep": {"x": 1.5, "on": True}, "a key": "v"}
    again = load_recipe(recipe_in(tmp_path / "run", to_toml(recipe)))
    assert again == recipe and isinstance(again, Recipe)
