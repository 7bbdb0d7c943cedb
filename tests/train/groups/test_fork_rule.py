"""rl.fork: its names, a function of the recipe's own, and what it does not go together with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.groups.fork_rule import check_fork, fork_rule
from rocstar.train.groups.source import Roller
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, ConfigErrors, TrainingStopped
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.tasks.tools import tool_box
from tests.fakes.agents import TASK, make_agent, tool_call


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    """Writes a function `own` into a file; its name for a recipe."""

    def write(source: str) -> str:
        path = tmp_path / "choosing.py"
        path.write_text(source, encoding="utf-8")
        return f"{path}:own"

    return write


def roller(**rl: Any) -> Roller:
    made = make_agent([tool_call("a"), tool_call("b"), "4"])
    return Roller(agent=made, forks=fork_rule(RlConfig(**rl)))


async def names(**rl: Any) -> list[str]:
    group = await roller(**rl).roll_out(TASK, size=1, seed=0, step=1)
    return [str(t.key) for t in group.trajectories]


async def test_the_default_forks_nowhere() -> None:
    assert fork_rule(RlConfig()) is None and RlConfig().most_branches == 0
    assert await names() == ["s1/t/0"]


async def test_an_own_function_gets_the_task_and_its_turns(own: Any) -> None:
    source = "def own(task, turns):\n    return task.id == 't' and turns[-1].results[0].text == 'b'\n"
    assert await names(fork=own(source), fork_width=3) == ["s1/t/0", "s1/t/0~2.1", "s1/t/0~2.2"]


@pytest.mark.parametrize(("body", "told"), [("1 / 0", "ZeroDivisionError"), ("return None", "it gave None, not True")])
async def test_a_function_that_fails_stops_the_run(own: Any, body: str, told: str) -> None:
    name = own(f"def own(task, turns):\n    {body}\n")
    with pytest.raises(TrainingStopped, match=told) as stopped:
        await names(fork=name)
    assert "rl.fork = " in str(stopped.value) and "--resume" in str(stopped.value)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("own = 3", "not a function"),
        ("def own(task): pass", "cannot be called with a task and its turns"),
        ("async def own(task, turns): return True", "is a coroutine function"),
        ("", "has no 'own'"),
    ],
)
def test_what_is_no_function_is_refused_before_a_run(own: Any, source: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_fork(RlConfig(fork=own(source)), 1)


def test_rollouts_of_several_nodes_do_not_fork() -> None:
    check_fork(RlConfig(fork="error"), 1)
    check_fork(RlConfig(), 2)
    with pytest.raises(ConfigError, match=r"rl\.fork = 'error' forks on one node, and 2 roll out; set rl\.fork ="):
        check_fork(RlConfig(fork="error"), 2)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"fork": "errors"}, "did you mean 'error'"),
        ({"fork": "turn", "fork_width": 4, "fork_depth": 4}, "255 branches, more than 63"),
        ({"fork": "turn", "fork_width": 4, "fork_tokens": 2}, "fork_tokens = 2 is not a token for each of 3 branches"),
    ],
)
def test_a_tree_without_a_bound_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RlConfig(**fields)


OWN_TOOL = """
from rocstar.engine.tools.tool import Tool

class Plain(Tool):
    name, description, parameters = "plain", "", {"type": "object", "properties": {}}
    async def call(self, arguments, context): ...

class Bound(Plain):
    name = "bound"
    async def open(self, context): ...

class Copied(Bound):
    name = "copied"
    async def branch(self, session): ...
"""


def recipe(**sections: Any) -> Recipe:
    return Recipe(**{"rl": {"fork": "error"}, **sections})


@pytest.mark.parametrize(("name", "is_refused"), [("Plain", False), ("Bound", True), ("Copied", False)])
def test_a_tool_that_cannot_copy_its_sessions_is_refused(tmp_path: Path, name: str, is_refused: bool) -> None:
    path = tmp_path / "tools_of_fork.py"
    path.write_text(OWN_TOOL, encoding="utf-8")
    tools = ["python", "jupyter", f"{path}:{name}"]
    tool_box(recipe(tools=tools, rl={}))
    if not is_refused:
        tool_box(recipe(tools=tools))
        return
    with pytest.raises(ConfigErrors, match=r"rl\.fork = 'error' copies sessions, and bound cannot copy its own"):
        tool_box(recipe(tools=tools))


def test_a_foreign_agent_does_not_fork() -> None:
    with pytest.raises(ValueError, match=r"agent\.kind = 'program' has state that cannot be copied"):
        recipe(agent={"kind": "program", "command": ["true"]})
    with pytest.raises(ValueError, match=r"\[\[environments\]\] has state that cannot be copied"):
        recipe(environments=[{"kind": "own:Environment"}])
