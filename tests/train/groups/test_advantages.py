"""A batch's advantages by the estimator that a recipe names, up to the tensors of the learner."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.json_record import to_record
from rocstar.engine.types import Group, Scored, Task, ToolCall, ToolResult, Trajectory
from rocstar.train.groups.advantages import check_advantage, estimate
from rocstar.train.groups.selection import select
from rocstar.train.learner.batch import pack, policy_examples
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.recipe.rl_config import RlConfig
from tests.fakes.trajectories import FakeTurn, make_trajectory


def trajectory(task: Task, sibling: int, reward: float, *, is_correct: bool = False, length: int = 1) -> Trajectory:
    """A prompt token, a turn of two tokens with a failing call, a tool token, a turn of `length` tokens."""
    call, failed = ToolCall(name="t", arguments={}), ToolResult(status="error", is_error=True, text="")
    return make_trajectory(
        FakeTurn(ids=(2, 3), text="call", calls=(call,), results=(failed,), answer=(4,)),
        FakeTurn(ids=(5 + sibling,) * length, text="answer"),
        task=task,
        sibling=sibling,
        outcome=Scored(reward=reward, method="m", is_correct=is_correct),
    )


def group(name: str, *rewards: float) -> Group:
    task = Task(id=name, source="s", question="q", answer="a")
    return Group(task=task, trajectories=tuple(trajectory(task, k, r) for k, r in enumerate(rewards)))


def config(advantage: str) -> RlConfig:
    return RlConfig(rollouts_per_task=4, group_size=2, advantage=advantage)


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    """Writes an estimator `own` into a file of its own; its name for a recipe."""

    def write(source: str) -> str:
        path = tmp_path / "estimators.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return f"{path}:own"

    return write


def test_the_default_is_grpo_and_others_have_a_name() -> None:
    groups = [group("a", 1.0, 0.0)]
    by_name = {
        name: select(groups, config(name), seed=0).advantages
        for name in (RlConfig().advantage, "dr_grpo", "rloo", "reinforce_pp")
    }
    assert by_name["grpo"] == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-5)
    assert (by_name["dr_grpo"], by_name["rloo"]) == ([0.5, -0.5], [1.0, -1.0])
    assert by_name["reinforce_pp"] == pytest.approx([1.0, -1.0], rel=1e-5)


def test_an_estimator_gets_the_whole_batch_in_the_order_of_tasks(own: Any) -> None:
    """Two groups of what was kept; the one without a signal is not among them."""
    name = own(
        """
        def own(groups):
            number = iter(range(100))
            assert [[s.reward for s in group] for group in groups] == [[1.0, 0.0], [2.0, -1.0]]
            assert groups[0][0].tokens_U == (2, 1) and groups[0][0].errors_U == (1, 0)
            return [[next(number) for _ in group] for group in groups]
        """
    )
    check_advantage(name)
    groups = [group("b", 2.0, -1.0), group("c", 3.0, 3.0), group("a", 1.0, 0.0)]
    selection = select(groups, config(name), seed=0)
    assert selection.advantages == [0.0, 1.0, 2.0, 3.0]
    assert [t.key.task_id for t in selection.kept] == ["a", "a", "b", "b"]
    assert [v.advantage for _, v in selection.verdicts] == [0.0, 1.0, 2.0, 3.0, None, None]
    assert (selection.groups_used, selection.groups_no_signal) == (2, 1)


def test_an_advantage_per_turn_reaches_its_tokens_and_the_record(own: Any) -> None:
    name = own(
        """
        def own(groups):
            return [[s.spread([-1.0 * s.errors_U[0], s.reward]) for s in group] for group in groups]
        """
    )
    selection = select([group("a", 1.0, 0.5)], config(name), seed=0)
    assert selection.advantages == [(-1.0, -1.0, 1.0), (-1.0, -1.0, 0.5)]
    (micro,) = pack(policy_examples(selection.kept, selection.advantages), tokens_per_microbatch=64)
    assert micro.advantages_T.tolist() == [-1.0, -1.0, 1.0, -1.0, -1.0, 0.5]
    assert micro.targets_T.tolist() == [2, 3, 5, 2, 3, 6]
    kept, verdict = selection.verdicts[0]
    record = to_record(kept, verdict, stage="s", num_answers=1, decode=lambda ids: "")
    assert json.loads(json.dumps(record))["advantage"] == [-1.0, -1.0, 1.0]


def test_an_advantage_of_another_length_makes_no_example() -> None:
    (selection,) = [select([group("a", 1.0, 0.5)], config("grpo"), seed=0)]
    with pytest.raises(ValueError, match="2 advantages for 3 loss tokens"):
        policy_examples(selection.kept, [[0.0, 1.0], 0.0])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("return []", r"groups of \[\] advantages for groups of \[2\]"),
        ("return [[0.0]]", r"groups of \[1\] advantages for groups of \[2\]"),
        ("return [[0.0, float('nan')]]", "it gave the advantage nan"),
        ("return [[[0.0], 0.0]]", "1 advantages for a sample of 3 loss tokens"),
        ("return None", "TypeError"),
        ("return [['a', 'b']]", "1 advantages for a sample of 3"),
    ],
)
def test_an_estimator_that_fails_stops_the_run(own: Any, body: str, told: str) -> None:
    name = own(f"def own(groups):\n    {body}\n")
    with pytest.raises(TrainingStopped, match=told) as error:
        select([group("a", 1.0, 0.0)], config(name), seed=0)
    assert "rl.advantage = " in str(error.value) and "--resume" in str(error.value)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("own = 3", "not a function"),
        ("class own: pass", "not a function"),
        ("def own(): pass", "cannot be called with the groups"),
        ("async def own(groups): pass", "is a coroutine function"),
        ("def own(groups, more): pass", "'more'"),
        ("", "has no 'own'"),
    ],
)
def test_what_is_no_estimator_is_refused_before_a_run(own: Any, source: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_advantage(own(source))


def test_a_step_without_a_signal_asks_for_no_advantage(own: Any) -> None:
    name = own("def own(groups):\n    assert groups == []\n    return []\n")
    assert select([group("a", 1.0, 1.0)], config(name), seed=0).kept == []
    assert estimate("grpo", []) == []


def test_roc_divides_by_correct_whatever_the_reward() -> None:
    """Four siblings, two kept: the one correct stays, though the wrong ones have the larger rewards."""
    task = Task(id="a", source="s", question="q", answer="a")
    pairs = [(0.1, True), (0.9, False), (0.7, False), (0.8, False)]
    members = tuple(trajectory(task, k, r, is_correct=c) for k, (r, c) in enumerate(pairs))
    ones = {"rollouts_per_task": 4, "group_size": 2, "roc_min_each": 1}
    selection = select([Group(task=task, trajectories=members)], RlConfig(**ones), seed=0)  # type: ignore[arg-type]
    assert sorted(t.outcome.is_correct for t in selection.kept if isinstance(t.outcome, Scored)) == [False, True]
    assert selection.ledger() == {"kept": 2, "dropped_negative": 2}
    assert replace(selection, verdicts=[]).groups_used == 1


def test_penalties_change_the_advantages_alone_and_no_right_one_falls_below_zero() -> None:
    """Siblings of two turns; a correct one's second turn is long."""
    task = Task(id="a", source="s", question="q", answer="1")
    rewards, lengths = (1.0, 1.0, 1.0, 0.0), (1, 1, 9, 1)
    pairs = enumerate(zip(rewards, lengths, strict=True))
    members = [trajectory(task, k, reward, is_correct=reward == 1, length=n) for k, (reward, n) in pairs]
    groups = [Group(task=task, trajectories=tuple(members))]
    plain = RlConfig(rollouts_per_task=4, group_size=4, advantage="dr_grpo", roc_mode="none")
    before = select(groups, plain, seed=0, limit=20)
    rl = plain.model_copy(update={"length_penalty": 0.5, "turn_penalty": 0.2, "overlong_buffer": 18})
    after = select(groups, rl, seed=0, limit=20)
    # Responses of 4 and 12 tokens, of which the policy wrote 3 and 11; the mean reward is 0.75.
    shaped = [r - 0.75 * (0.5 * (n + 2) / 11 + 0.2) - (n + 1) / 18 for r, n in zip(rewards, lengths, strict=True)]
    centred = [value - sum(shaped) / 4 for value in shaped]
    assert centred[2] < 0
    assert after.advantages == pytest.approx([*centred[:2], 0.0, centred[3]])
    assert [t.outcome for t in after.kept] == [t.outcome for t in before.kept]
    equal = [group("b", 1.0, 1.0)]
    assert select(equal, rl, seed=0, limit=20).groups_no_signal == 1
