"""examples/search_tool: a class beside a recipe is a tool of the policy, together with Python's."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.inference.base import Sampling
from rocstar.engine.record.reading import read_folder, read_records
from rocstar.engine.rollout.rollout import Agent, RolloutLimits, run_trajectory
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.tools.jupyter import JupyterTool
from rocstar.engine.tools.python import PythonTool
from rocstar.engine.types import Attempt, Outcome, Scored, Task, TrajectoryKey
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import Limits
from rocstar.train.cli import main
from rocstar.train.recipe.own_code import load
from tests.fakes.scripted_policy import ByteTokenizer, ScriptedPolicy, check_trajectory

from ..kept_pool import kept_pools
from ..patience import PATIENCE_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_tool"
PYTHON, JUPYTER = "python_code_with_standard_io", "jupyter_code"
SHORT = ("--stages.0.steps=2", "--run.threads=1", "--eval.samples_per_task=1")


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as somebody else has it: in a folder of its own, with its data made."""
    folder = tmp_path_factory.mktemp("example") / "search_tool"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.jsonl", "__pycache__"))
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, timeout=PATIENCE_S)
    return folder


@pytest.fixture(scope="session")
def finished(example: Path) -> Path:
    """Two steps of it, started from another folder."""
    directory = example.parent / "run"
    with contextlib.chdir(example.parent), kept_pools():
        assert main(["train", "search_tool/recipe.toml", "--output-dir", str(directory), *SHORT]) == 0
    return directory


def records_of(path: Path) -> list[dict[str, Any]]:
    return list(read_folder(path))


def answered(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Name and result of every call that ended well."""
    calls = [call for turn in record["turns"] for call in turn["calls"]]
    return [(call["name"], call["result"]) for call in calls if call["status"] == "ok"]


def test_two_steps_call_both_tools_in_one_trajectory(finished: Path) -> None:
    records = records_of(finished / "trajectories")
    assert {record["step"] for record in records} == {1, 2}
    both = [calls for calls in map(answered, records) if {name for name, _ in calls} == {"search", PYTHON}]
    assert both, "searched and calculated"
    assert any("costs" in text for calls in both for name, text in calls if name == "search")
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["phase"] == "rl"]
    assert all(row["tool/calls/search"] and row[f"tool/calls/{PYTHON}"] for row in steps)


def test_the_runs_own_recipe_finds_the_tool_from_anywhere(finished: Path, tmp_path: Path) -> None:
    model, out = finished / "checkpoints" / "step_2", tmp_path / "one.jsonl"
    with contextlib.chdir(tmp_path), kept_pools():
        options = ["--model", str(model), "--limit", "2", "--out", str(out)]
        assert main(["rollout", str(finished / "config.toml"), *options]) == 0
    assert any(name == "search" for record in read_records(out) for name, _ in answered(record))


class Judge:
    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        is_correct = attempt.task.answer in attempt.text
        return Scored(reward=float(is_correct), is_correct=is_correct, method="fake")


async def test_three_tools_in_one_trajectory_from_python() -> None:
    """Programs, cells and searches, several in one turn; the policy is a script, the sandbox real."""
    search = load(f"{EXAMPLE / 'search_tool.py'}:SearchTool", field="tools.0.kind")
    common: dict[str, Any] = {"limits": Limits(wall_s=10.0), "flavour": "stdlib", "style": "plain"}

    def call(name: str, **arguments: str) -> str:
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    script = {
        ("t", 0, 1): call(JUPYTER, code="n = 3")
        + call("search", query="rope")
        + call("search", query="snow"),
        ("t", 0, 2): call(JUPYTER, code="n + 1") + call(PYTHON, code="print(3 * 4)", input=""),
        ("t", 0, 3): "12",
    }
    async with SandboxPool(("stdlib",), max_sessions=2) as pool:
        tools = Dispatcher(
            tools=[search(corpus="corpus.txt"), PythonTool(**common), JupyterTool(**common)], sandbox=pool
        )
        tokenizer = ByteTokenizer()
        agent = Agent(
            inference=ScriptedPolicy(script, tokenizer),
            chat=ChatFormat(tokenizer, load_template("compact", None), tools.schemas),
            tools=tools,
            judge=Judge(),
            limits=RolloutLimits(max_response_tokens=9000, max_turns=4, max_tool_tokens=200, timeout_s=120.0),
            sampling=Sampling(),
        )
        task = Task(id="t", source="s", question="What do 3 ropes cost?", answer="12")
        trajectory = await run_trajectory(agent, task, TrajectoryKey(seed=1, step=0, task_id="t", sibling=0))
    check_trajectory(trajectory)
    assert [(r.status, r.text) for r in trajectory.results] == [
        ("ok", "(no output)"),
        ("ok", "A rope costs 4 coins."),
        ("error", "nothing found"),
        ("ok", "4"),
        ("ok", "12"),
    ]
    assert isinstance(trajectory.outcome, Scored) and trajectory.outcome.reward == 1.0
    prompt = tokenizer.decode(trajectory.ids[: trajectory.prompt_length].tolist())
    assert all(name in prompt for name in ("search", PYTHON, JUPYTER))
