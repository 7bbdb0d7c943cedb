"""Classes of TRL's protocol in the turn loop: prompt, tools, reward, failures."""

import random
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocstar.engine.types import Failed, FinishReason, Origin, Scored
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.load import load_recipe
from rocstar.train.tasks.environments.kinds import environments_of
from tests.fakes.agents import CHAT, tool_call
from tests.train.tasks.environments.attempts import attempt, call

GUESS = f"{Path(__file__).parent}/guess.py:Guess"


def recipe_of(**fields: Any) -> Recipe:
    return load_recipe({"environments": [{"kind": GUESS, "name": "guess", **fields}]})


async def test_an_attempt_uses_prompt_tools_and_reward_of_the_class() -> None:
    turns = [call("guess", n=3) + call("hint"), call("guess", n=4), "done"]
    t = await attempt(turns, recipe_of(prompt="Please: {question}!"))
    assert t.outcome == Scored(reward=0.75, method="program", is_correct=False)
    assert [[result.text for result in turn.results] for turn in t.turns] == [["no", "even"], ["yes"], []]
    shown = environments_of(recipe_of())["guess"].functions
    assert [function["function"]["name"] for function in shown] == ["guess", "hint"]
    expected = CHAT.prompt_ids("Please: A number?! It lies between 1 and 9.", (), shown)
    assert t.ids[: t.segments[0].end].tolist() == expected
    assert [segment.origin for segment in t.segments] == [
        Origin.prompt, Origin.policy, Origin.tool, Origin.policy, Origin.tool, Origin.policy,
    ]  # fmt: skip


async def test_instances_are_used_again_and_reset() -> None:
    recipe = recipe_of(args={"answer": "again"})
    for secret in (4, 5):
        t = await attempt([call("guess", n=4), "done"], recipe, row={"secret": secret})
        assert t.results[0].text == ("again" if secret == 4 else "no")
        assert isinstance(t.outcome, Scored) and t.outcome.reward == (0.875 if secret == 4 else -0.125)
    assert len(environments_of(recipe)["guess"]._idle) == 1  # type: ignore[attr-defined]


async def test_errors_of_methods_are_answers() -> None:
    turns = [call("guess", n=-1), call("guess"), call("guess", n=4, m=1), call("_secret"), call("reset"), "done"]
    t = await attempt(turns, recipe_of(), max_turns=9)
    assert [result.status for result in t.results] == [
        "error", "bad_arguments", "error", "unknown_tool", "unknown_tool",
    ]  # fmt: skip
    assert t.results[0].text == "{'error': '-1 is negative'}"
    assert "unexpected keyword argument 'm'" in t.results[2].text


async def test_null_is_a_value_of_an_optional_parameter() -> None:
    t = await attempt([call("guess", n=4, note=None), "done"], recipe_of())
    assert t.results[0].text == "yes"


async def test_the_last_turns_call_counts() -> None:
    t = await attempt([call("guess", n=4), "done"], recipe_of(max_turns=1))
    assert t.finish_reason is FinishReason.max_turns and t.results[0].text == "yes"
    assert t.outcome == Scored(reward=0.875, method="program", is_correct=False)


async def test_limits_are_at_most_the_agents() -> None:
    t = await attempt([call("hint")] * 9, recipe_of(max_turns=5), max_turns=3)
    assert len(t.turns) == 3
    t = await attempt(["x" * 30], recipe_of(max_response_tokens=8))
    assert (t.finish_reason, t.response_length) == (FinishReason.max_tokens, 8)


@pytest.mark.parametrize(
    ("rule", "turns", "expected"),
    [
        ("recipe", ["done"], Scored(reward=1.0, method="fake")),
        ("both", [call("guess", n=4), "done"], Scored(reward=1.875, method="fake", is_correct=True)),
        ("both", [call("guess", n=4), "x"], Scored(reward=0.875, method="fake", is_correct=False)),
        ("environment", ["done"], Scored(reward=0.0, method="program", is_correct=False)),
    ],
)
async def test_the_reward_is_of_one_or_of_both(rule: str, turns: list[str], expected: Scored) -> None:
    assert (await attempt(turns, recipe_of(reward=rule))).outcome == expected


async def test_tools_of_the_recipe_are_shown_beside() -> None:
    t = await attempt([tool_call("1"), "done"], recipe_of(tools=True))
    assert t.results[0].status == "ok"
    t = await attempt([tool_call("1"), "done"], recipe_of())
    assert t.results[0].status == "unknown_tool"


BROKEN = """
import asyncio
class Guess:
    def reset(self, **row):
        {reset}
    def get_reward(self):
        {reward}
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ({"reset": "1 / 0"}, "own: its reset: ZeroDivisionError: division by zero (own.py:5)"),
        ({"reward": "1 / 0"}, "own: its reward: ZeroDivisionError"),
        ({"reward": "return 'much'"}, "own: its reward is 'much'; it must be a finite number"),
        ({"reward": "return float('nan')"}, "own: its reward is nan"),
        ({"reset": "return [{'type': 'image'}]"}, "content of type 'image' is not supported"),
        ({"reset": "raise SystemExit(3)"}, "own: its reset: SystemExit: 3"),
    ],
)
async def test_a_failure_is_no_reward(tmp_path: Path, code: dict[str, str], words: str) -> None:
    (tmp_path / "own.py").write_text(BROKEN.format(**{"reset": "pass", "reward": "return 1.0", **code}))
    recipe = load_recipe({"environments": [{"kind": f"{tmp_path}/own.py:Guess", "name": "own"}]})
    t = await attempt(["done"], recipe)
    assert isinstance(t.outcome, Failed) and t.outcome.kind == "environment_failed" and words in t.outcome.detail


async def test_a_call_that_hangs_keeps_its_instance(tmp_path: Path) -> None:
    """Another attempt gets a new instance; a reset that hangs fails its attempt."""
    source = """
    import threading
    release, made = threading.Event(), []
    class Guess:
        def __init__(self): made.append(self)
        def reset(self, hangs: bool, **row): hangs and release.wait(600)
        def wait(self) -> None:
            "Wait."
            release.wait(600)
        def get_reward(self): return float(len(made))
    """
    (tmp_path / "slow.py").write_text(textwrap.dedent(source))
    recipe = load_recipe({"environments": [{"kind": f"{tmp_path}/slow.py:Guess", "name": "own", "timeout_s": 0.1}]})
    environment: Any = environments_of(recipe)["own"]
    there = type(environment._idle[0]).reset.__globals__
    t = await attempt([call("wait"), "done"], recipe, row={"hangs": False})
    assert t.results[0].status == "timeout" and environment._idle == []
    t = await attempt(["done"], recipe, row={"hangs": False})
    assert isinstance(t.outcome, Scored) and t.outcome.reward == 2.0
    t = await attempt(["done"], recipe, row={"hangs": True})
    assert isinstance(t.outcome, Failed) and t.outcome.detail == "own: its reset took longer than timeout_s = 0.1"
    there["release"].set()


async def test_siblings_begin_alike_and_draw_alike(tmp_path: Path) -> None:
    source = """
    import random
    class Dice:
        def reset(self, **row):
            return str(random.random())
        def roll(self) -> str:
            "Roll a die."
            return str(random.random())
        def get_reward(self): return 1.0
    """
    (tmp_path / "dice.py").write_text(textwrap.dedent(source))
    recipe = load_recipe({"environments": [{"kind": f"{tmp_path}/dice.py:Dice"}]})
    outer = random.getstate()
    one, two, other = [
        await attempt([call("roll"), call("roll"), "done"], recipe, sibling=k, task_id=name)
        for k, name in ((0, "t"), (1, "t"), (0, "u"))
    ]
    assert random.getstate() == outer
    assert np.array_equal(one.ids, two.ids) and len({result.text for result in one.results}) == 2
    assert not np.array_equal(one.ids, other.ids)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class Guess:\n    pass", "the class defines no method reset"),
        ("class Guess:\n    def reset(self): pass", "gives no reward; define get_reward"),
        ("class Guess:\n    def reset(self): pass\n    def f(self, x: int): pass", "'f' is shown as a tool"),
        (
            "class Guess:\n    def reset(self): pass\n    def get_reward(self): return 1\n"
            "    def f(self, x):\n        '''F.\n\n        Args:\n            x: X.'''",
            "'f' is shown as a tool, and has no schema",
        ),
        ("class Guess:\n    def __init__(self): 1 / 0", "ZeroDivisionError: division by zero (own.py, line 2)"),
        ("class Other: pass", "the module has no 'Guess'; it defines Other"),
    ],
)
def test_what_is_no_environment_is_refused(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "own.py").write_text(source)
    with pytest.raises(ConfigError) as refused:
        environments_of(load_recipe({"environments": [{"kind": f"{tmp_path}/own.py:Guess"}]}))
    assert str(refused.value).startswith("environments.0.") and words in str(refused.value)
    assert "\n" not in str(refused.value)
