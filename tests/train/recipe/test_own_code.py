"""Code that a recipe names: beside the recipe or on sys.path, and each way not to find it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe, to_toml
from rocstar.train.recipe.own_code import load


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Undo what these imports leave in the interpreter."""
    sys.modules.pop("own", None)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def found(spec: str, folder: Path | None = None) -> Any:
    return load(spec, field="tools.0.kind", folder=folder)


def test_a_file_beside_the_recipe_comes_before_sys_path(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("dumps = 'mine'\n")
    (tmp_path / "mine.py").write_text("import beside\nclass Mine: value = beside.VALUE\n")
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    assert found("json:dumps", tmp_path) == "mine"
    assert found("json:dumps") is not found("json:dumps", tmp_path), "and does not hide the one of all others"
    assert found("mine:Mine", tmp_path).value == 7, "with its neighbours"
    assert found("mine:Mine", tmp_path) is found(f"{tmp_path}/mine.py:Mine"), "imported once"
    assert found("os.path:basename", tmp_path) is os.path.basename


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "own_module.py").write_text(f"NAME = {name!r}\n")
    assert [found("own_module:NAME", tmp_path / name) for name in "abab"] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("text", "spec", "words"),
    [
        ("", "nowhere:X", "/nowhere.py' does not exist, and sys.path has no module 'nowhere'"),
        ("", "nowhere.deep:X", "there is no module 'nowhere.deep'"),
        ("", "gone.py:X", "does not exist"),
        ("", "own:", "write it as 'module:Name'"),
        ("", "own", "write it as 'module:Name'"),
        ("class Y: ...\n", "own:X", "the module has no 'X'; it defines Y"),
        ("", "own:X", "it defines nothing"),
        ("import nowhere_else\n", "own:X", "needs a module 'nowhere_else' that is not installed"),
        ("x = 1\n1 / 0\n", "own:X", "ZeroDivisionError: division by zero (own.py, line 2)"),
        ("class X:\n  def\n", "own:X", "SyntaxError"),
        ("raise SystemError\n", "own:X", "importing it failed: SystemError"),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_line(tmp_path: Path, text: str, spec: str, words: str) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ConfigError) as refused:
        found(spec, tmp_path)
    assert str(refused.value).startswith("tools.0.kind = ") and words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "own" not in sys.modules or text.startswith("class Y") or not text


def test_the_recipe_says_where_its_code_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, here = tmp_path / "folder", tmp_path / "here"
    for each in (folder, here):
        each.mkdir()
        (each / "own.py").write_text("")
    tools = 'tools = ["python", "own:A", {kind = "json:B"}, {kind = "own.py:C"}]\n'
    (folder / "r.toml").write_text(f'{tools}[rl]\nadvantage = "own:F"\n')
    monkeypatch.chdir(here)
    recipe = load_recipe(folder / "r.toml", ["--reward.kind=own:G"])
    assert recipe.rl.advantage == f"{folder}/own.py:F" and recipe.reward.kind == f"{here}/own.py:G"

    def kinds(*options: str) -> list[str]:
        return [tool.kind for tool in load_recipe(folder / "r.toml", options).tools]

    assert kinds() == ["python", f"{folder}/own.py:A", "json:B", f"{folder}/own.py:C"]
    assert kinds("--tools.3.kind=own:D")[3] == f"{here}/own.py:D"
    assert kinds('--tools=["own:E"]') == [f"{here}/own.py:E"]
    (tmp_path / "config.toml").write_text(to_toml(load_recipe(folder / "r.toml")))
    assert [tool.kind for tool in load_recipe(tmp_path / "config.toml").tools] == kinds()


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('[reward]\nkind = "maths"', "reward: kind = 'maths' is neither 'math' nor of the form 'module:function'"),
        ("[reward]\nargs = { a = 1 }", "kind = 'math' takes none"),
        ("[reward]\ntimeout_s = 0", "reward.timeout_s = 0"),
        ('[rl]\nadvantage = "ppo"', "advantage = 'ppo' is not known; choose from grpo, dr_grpo, rloo, reinforce_pp"),
    ],
)
def test_a_value_that_names_nothing_is_refused(tmp_path: Path, section: str, words: str) -> None:
    (tmp_path / "r.toml").write_text(section)
    with pytest.raises(ConfigError) as refused:
        load_recipe(tmp_path / "r.toml")
    assert words in str(refused.value)


def test_arguments_are_written_back_as_they_were(tmp_path: Path) -> None:
    args = '{ words = ["a", "b"], deep = { x = 1.5, on = true }, "a key" = "v" }'
    (tmp_path / "r.toml").write_text(f'[reward]\nkind = "os.path:join"\nargs = {args}\n')
    recipe = load_recipe(tmp_path / "r.toml")
    assert recipe.reward.args == {"words": ["a", "b"], "deep": {"x": 1.5, "on": True}, "a key": "v"}
    (tmp_path / "again.toml").write_text(to_toml(recipe))
    assert load_recipe(tmp_path / "again.toml") == recipe
