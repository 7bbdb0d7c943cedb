"""The tools of a recipe: one of the author's own is made and checked before anything runs."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.tools.python import PYTHON_SCHEMA
from rocstar.train.cli import main
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.recipe.load import parse_recipe
from rocstar.train.tasks.tools import demonstrated_tool, tool_box

RIGHT = """
from rocstar.engine.tools.tool import Tool, ToolOutput

class Own(Tool):
    name = "own"
    description = "Mine"
    parameters = {"type": "object", "properties": {}}

    def __init__(self, k: int = 1) -> None:
        if k < 1:
            raise ValueError(f"k = {k}: give 1 or more")
        self.k = k

    async def call(self, arguments, context):
        return ToolOutput("fine")
"""


def recipe_of(folder: Path, source: str, *tools: Any, **sections: Any) -> Recipe:
    (folder / "own.py").write_text(textwrap.dedent(source))
    listed = [{"kind": f"{folder}/own.py:Own", **tool} if isinstance(tool, dict) else tool for tool in tools]
    return parse_recipe({"tools": listed, **sections}, where="test")


def test_the_box_has_the_recipes_tools_in_its_order(tmp_path: Path) -> None:
    box = tool_box(recipe_of(tmp_path, RIGHT, {"args": {"k": 3}}, "python", tool={"wall_s": 2.5}))
    assert box.schemas[1] == PYTHON_SCHEMA and box.schemas[0]["function"]["name"] == "own"
    assert (box.timeout_s, box.sandbox) == (2.5, None)
    assert box.tools[0].k == 3  # type: ignore[attr-defined]


def test_checks_prompt_and_agent_have_one_object_of_a_tool(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, RIGHT, {}, "python")
    assert tool_box(recipe).tools[0] is tool_box(recipe).tools[0]
    other = recipe_of(tmp_path, RIGHT, {"args": {"k": 2}}, "python")
    assert tool_box(other).tools[0] is not tool_box(recipe).tools[0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("class Own(Tool)", "class Own", "no subclass of rocstar.engine.tools.tool.Tool"),
        ("class Own(Tool)", "Own = 1\nclass Other(Tool)", "no subclass of"),
        ("async def call", "async def cal", "does not define call"),
        ("async def call", "def call", "call is not async"),
        ('name = "own"', 'name = "my own"', "name = 'my own': use 1 to 64 letters"),
        ('    name = "own"\n', "", "it has no name"),
        ('description = "Mine"', "description = None", "it has no description"),
        ('"type": "object"', '"type": "string"', "parameters: it is no JSON schema of an object"),
        ('"properties": {}', '"properties": {"q": {"type": "text"}}', "it is no JSON schema: 'text'"),
        ('"properties": {}', '"default": {1}', "cannot be written as JSON"),
        ("name = ", "timeout_s = 0.0\n    name = ", "timeout_s = 0.0: give seconds above 0"),
    ],
)
def test_what_is_no_tool_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in RIGHT
    with pytest.raises(ConfigError) as refused:
        tool_box(recipe_of(tmp_path, RIGHT.replace(old, new), "python", {}))
    assert str(refused.value).startswith("tools.1.kind = ") and words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"n": 1}, "unexpected keyword argument 'n'; it takes (k: int = 1)"),
        ({"k": 0}, "args = {'k': 0}: ValueError: k = 0: give 1 or more (own.py, line "),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, args: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tool_box(recipe_of(tmp_path, RIGHT, {"args": args}))
    assert words in str(refused.value)


def test_all_that_is_wrong_is_told_and_a_name_that_two_tools_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as refused:
        tool_box(recipe_of(tmp_path, RIGHT, {}, {"args": {"k": 2}}, {"args": {"k": 0}}))
    taken, made = refused.value.problems
    assert "its name 'own' is that of tools.0.kind" in taken and taken.startswith("tools.1.kind")
    assert made.startswith("tools.2.kind")
    name, other = "python_code_with_standard_io", tmp_path / "other"
    other.mkdir()
    with pytest.raises(ConfigError, match=f"its name '{name}' is that of tools.0.kind = 'python'"):
        tool_box(recipe_of(other, RIGHT.replace('"own"', f'"{name}"'), "python", {}))


def test_demonstrations_use_the_first_tool_that_runs_programs(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, RIGHT, {}, "jupyter", "python")
    assert demonstrated_tool(recipe).name == "jupyter_code"


def test_a_dry_run_tells_it_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(RIGHT)
    (tmp_path / "r.toml").write_text('tools = ["python", {kind = "own:Own", args = {k = 0}}]\n')
    assert main(["train", str(tmp_path / "r.toml"), "--dry-run", "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert any(p.startswith("tools.1.kind") and "give 1 or more" in p for p in problems)
    assert main(["train", str(tmp_path / "r.toml"), "--tools=python"]) == 2
    assert """write --tools='["python"]'""" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "r.toml"), "--tol=1"]) == 2
    assert "option '--tol=1' is not known" in capsys.readouterr().err
