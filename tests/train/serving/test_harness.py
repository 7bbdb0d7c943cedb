"""[agent] of a recipe: its fields, the checks of a start, and the reward of an agent's number."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.types import Attempt, Failed, Given, Outcome, Scored, Task, Turn
from rocstar.train.learner.cold_start import read_conversations
from rocstar.train.recipe.config import AgentConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.serving.agent import check_agent
from rocstar.train.tasks.own_reward import AgentReward
from rocstar.train.tasks.verify import extract_answer, num_answers
from tests.patience import PATIENCE_S

TASK = Task(id="t", source="s", question="q", answer="4")


async def solve(task: Task, client: object, sandbox: object, *, turns: int = 1) -> str:
    return ""


def plain(task: Task) -> str:
    return ""


HERE = f"{Path(__file__).absolute()}"
EXAMPLE = Path(__file__).parents[3] / "examples" / "own_agent"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "progam", "command": "true"}, "agent 'progam' is not known; did you mean 'program'"),
        ({"kind": "program"}, "a program needs a command"),
        ({"command": "true"}, "a program needs a command"),
        ({"kind": "program", "command": 'python "'}, "No closing quotation"),
        ({"kind": "program", "command": "true", "args": {"n": 1}}, "belong to a function"),
        ({"reward": "program"}, "the built-in loop gives no number"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AgentConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "program", "command": "no_such_program x"}, "there is no program 'no_such_program' on PATH"),
        ({"kind": f"{HERE}:missing"}, "has no 'missing'"),
        ({"kind": f"{HERE}:plain"}, "is no coroutine function"),
        ({"kind": f"{HERE}:solve", "args": {"depth": 1}}, "does not fit a call with a task"),
    ],
)
def test_a_start_refuses_an_agent_that_is_not_there(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_agent(AgentConfig(**fields))
    check_agent(AgentConfig(kind=f"{HERE}:solve", args={"turns": 2}))
    check_agent(AgentConfig(kind="program", command="true"))


def test_the_example_is_a_recipe_with_data(tmp_path: Path) -> None:
    example = shutil.copytree(EXAMPLE, tmp_path / "example")
    subprocess.run([sys.executable, "make_data.py"], cwd=example, check=True, timeout=PATIENCE_S)
    recipe = load_recipe(example / "recipe.toml")
    assert recipe.agent.command == ["python", str(example / "agent.py")]
    assert all(row["tools"] for row in read_conversations(Path(recipe.sft.data)))


def test_files_of_a_command_are_found_beside_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.py").touch()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[agent]\nkind = 'program'\ncommand = 'python agent.py --depth 2'\n")
    monkeypatch.chdir("/")
    assert load_recipe(recipe).agent.command == ["python", os.fspath(tmp_path / "agent.py"), "--depth", "2"]


class Fixed:
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        return self.outcome


def attempt(given: Given | None, *, is_truncated: bool = False) -> Attempt:
    turn = Turn(start=0, end=1, text="It is <answer>\\boxed{5}</answer>", stopped=True)
    return Attempt(task=TASK, turns=(turn,), is_truncated=is_truncated, given=given)


async def test_a_number_is_the_reward_alone_or_with_that_of_the_recipe() -> None:
    right, lost = Scored(reward=1.0, method="exact"), Failed(kind="sandbox_lost", retryable=True, detail="")
    cases: list[tuple[Outcome | None, Attempt, Outcome]] = [
        (None, attempt(Given(reward=0.5)), Scored(reward=0.5, method="program", is_correct=False)),
        (None, attempt(Given(reward=2)), Scored(reward=2.0, method="program", is_correct=True)),
        (None, attempt(Given(reward=2), is_truncated=True), Scored(reward=2.0, method="program", is_correct=False)),
        (None, attempt(Given(), is_truncated=True), Scored(reward=0.0, method="program", is_correct=False)),
        (right, attempt(Given(reward=0.5)), Scored(reward=1.5, method="exact", is_correct=True)),
        (lost, attempt(Given(reward=0.5)), lost),
    ]
    for judged, made, expected in cases:
        judge = AgentReward(None if judged is None else Fixed(judged))
        assert await judge.score(made, deadline=None) == expected
    missing = await AgentReward(None).score(attempt(Given(answer="4")), deadline=None)
    assert isinstance(missing, Failed) and missing.kind == "agent_no_reward"


def test_the_answer_that_an_agent_gives_is_judged_in_the_place_of_its_text() -> None:
    for given, answer in (("4", "4"), ("so \\boxed{4}", "4"), (None, "5")):
        assert extract_answer(attempt(Given(answer=given))).answer == answer
    assert extract_answer(attempt(None)).answer == "5"
    two = Turn(start=0, end=1, text="<answer>1</answer><answer>2</answer>", stopped=True)
    made = Attempt(task=TASK, turns=(two,), is_truncated=False)
    assert num_answers(made) == 2
    assert num_answers(Attempt(task=TASK, turns=(two,), is_truncated=False, given=Given())) == 1
