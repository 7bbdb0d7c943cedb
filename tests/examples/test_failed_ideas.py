"""examples/failed_ideas: rewards and an advantage that a recipe takes as its own code."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.types import Attempt, Task, ToolCall, ToolResult, Turn
from rocstar.train.algorithm.advantages import ESTIMATORS, Sample
from rocstar.train.groups.advantages import check_advantage
from rocstar.train.recipe import own_code
from rocstar.train.recipe.config import RewardConfig
from rocstar.train.tasks.own_reward import check_reward
from tests.fakes.sandbox import FakeSandbox, ok

IDEAS = Path(__file__).parents[2] / "examples" / "failed_ideas" / "ideas.py"


@pytest.fixture(scope="module")
def ideas() -> Any:
    """The functions as a recipe finds them."""
    names = ("answer_and_tools", "less_for_repeating", "mark_truncated", "leave_out_truncated", "repeated")
    found = {name: own_code.load(f"{IDEAS}:{name}", field="reward.kind") for name in names}
    return Namespace(**found)


ANSWERED = "So it is <answer>\\boxed{42}</answer>"


def attempt(text: str = ANSWERED, *, errors: tuple[bool, ...] = (), truncated: bool = False) -> Attempt:
    call = ToolCall(name="python", arguments={"code": "1"})
    results = tuple(ToolResult(status="error" if e else "ok", is_error=e, text="") for e in errors)
    turns = [
        Turn(start=0, end=1, text="I call.", stopped=True, calls=(call,) * len(results), results=results),
        Turn(start=1, end=2, text=text, stopped=not truncated),
    ]
    task = Task(id="t", source="made", question="6 * 7?", answer="42")
    return Attempt(task=task, turns=tuple(turns), is_truncated=truncated)


async def test_tools_that_go_well_add_to_the_reward_and_make_nothing_correct(ideas: Any) -> None:
    sandbox = FakeSandbox({}, otherwise=ok())
    for errors, value in (((), 1.0), ((False,), 1.5), ((True, False), 1.25), ((True,), 1.0)):
        found = await ideas.answer_and_tools(attempt(errors=errors), sandbox=sandbox, bonus=0.5)
        assert (found.value, found.is_correct) == (value, True)
    wrong = await ideas.answer_and_tools(attempt("no", errors=(False,)), sandbox=sandbox)
    assert (wrong.value, wrong.is_correct) == (0.5, False)


async def test_repeating_takes_from_the_reward(ideas: Any) -> None:
    sandbox = FakeSandbox({}, otherwise=ok())
    assert ideas.repeated("one two three four five", 4) == 0.0
    assert ideas.repeated("a b c d " * 20, 4) > 0.9
    assert ideas.repeated("a b", 4) == 0.0
    found = await ideas.less_for_repeating(attempt("so so " * 40 + ANSWERED), sandbox=sandbox, weight=0.5)
    assert 0.5 < found.value < 0.7 and found.is_correct
    assert (await ideas.less_for_repeating(attempt(), sandbox=sandbox)).value == 1.0


async def test_truncated_siblings_teach_nothing_and_change_no_mean(ideas: Any) -> None:
    sandbox = FakeSandbox({}, otherwise=ok())
    cut = await ideas.mark_truncated(attempt(truncated=True), sandbox=sandbox)
    kept = await ideas.mark_truncated(attempt(), sandbox=sandbox)
    assert kept.value == 1.0 and cut.value < 0 and not cut.is_correct

    def sample(reward: float) -> Sample:
        return Sample(reward=reward, is_correct=reward == 1.0, tokens_U=(3,), errors_U=(0,))

    ended = [sample(1.0), sample(0.0), sample(1.0)]
    ((*found, of_cut),) = ideas.leave_out_truncated([[*ended, sample(cut.value)]])
    assert of_cut == 0.0
    assert found == pytest.approx(list(ESTIMATORS["grpo"]([ended])[0]), abs=1e-4)
    assert ideas.leave_out_truncated([[sample(cut.value), sample(1.0)]]) == [[0.0, 0.0]]


@pytest.mark.parametrize("name", ["answer_and_tools", "less_for_repeating", "mark_truncated"])
def test_a_recipe_takes_them(name: str) -> None:
    check_reward(RewardConfig(kind=f"{IDEAS}:{name}"))
    check_advantage(f"{IDEAS}:leave_out_truncated")
