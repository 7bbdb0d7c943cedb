"""Tools of a server of the Model Context Protocol, which the real package serves in a process of its own."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.rollout.rollout import run_trajectory
from rocstar.engine.types import Failed, Task, Trajectory, TrajectoryKey
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.tasks.tools import tool_box
from tests import needs
from tests.fakes.agents import make_agent

if find_spec("mcp") is None:
    pytest.skip(needs.package("mcp").reason, allow_module_level=True)

SERVER = [sys.executable, f"{Path(__file__).parent}/mcp_notes.py"]


def box_of(**args: Any) -> Any:
    return tool_box(load_recipe({"tools": ["python", {"kind": "mcp", "args": args}]}))


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def attempt(turns: list[str]) -> Trajectory:
    agent = make_agent(turns, tools=box_of(command=SERVER))
    key = TrajectoryKey(seed=0, step=0, task_id="t", sibling=0)
    return await run_trajectory(agent, Task(id="t", source="s", question="?", answer=""), key)


def test_the_listed_tools_are_shown() -> None:
    shown = [schema["function"] for schema in box_of(command=SERVER).schemas]
    assert [function["name"] for function in shown] == ["python_code_with_standard_io", "note", "count"]
    assert shown[1]["description"] == "Keep a note, and show all so far."
    assert shown[1]["parameters"]["required"] == ["text"]


async def test_a_trajectory_has_a_connection_of_its_own() -> None:
    """Both tools see its notes, and no trajectory those of another."""
    for _ in range(2):
        # One call a turn: those of one turn run side by side.
        t = await attempt([call("note", text="a"), call("count"), call("note", text="b"), call("count"), "done"])
        assert [result.text for result in t.results] == ["a", "1", "a, b", "2"]


async def test_errors_are_read_by_the_policy() -> None:
    t = await attempt([call("note", text="bad"), call("note", x=1), "done"])
    assert [(result.status, result.is_error) for result in t.results] == [("error", True), ("bad_arguments", True)]
    assert "no such note" in t.results[0].text


async def test_a_server_that_dies_fails_the_trajectory() -> None:
    t = await attempt([call("note", text="die"), "done"])
    assert isinstance(t.outcome, Failed) and t.outcome.kind == "tool_failed" and t.outcome.detail.startswith("note: ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "(None): give command, a list of texts, or url, a text"),
        ({"command": [3]}, "give command, a list of texts"),
        ({"command": ["x"], "url": "y"}, "give command, a list of texts"),
        ({"command": ["x"], "env": {"TOKEN": 5}}, "give command, a list of texts"),
        ({"cmd": "x"}, "unexpected keyword argument 'cmd'"),
        ({"command": ["/nope"]}, "(['/nope']): it cannot be connected: [Errno 2] No such file or directory"),
        ({"url": "http://127.0.0.1:1/mcp"}, "(http://127.0.0.1:1/mcp): it cannot be connected: "),
        ({"command": [sys.executable, "-c", "input()\ninput()"], "timeout_s": 0.5}, "it does not answer within 0.5 s"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        box_of(**args)
    assert str(refused.value).startswith("tools.1.kind = 'mcp' (") and words in str(refused.value)
    assert "\n" not in str(refused.value)
