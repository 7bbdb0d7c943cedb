"""avg@k, pass@k and their interval; attempts that Failed count neither way."""

import dataclasses
import re

import pytest

from rocstar.engine.types import Failed, FinishReason, Group, Scored, Task, ToolCall, ToolResult, Turn
from rocstar.train.evaluation.results import Evaluation, group_by_question, set_results, summarize, unscored_error
from rocstar.train.evaluation.sets import EvaluationSet
from rocstar.train.recipe.errors import ConfigError, TrainingStopped
from rocstar.train.record.metrics import check_names

from .eval_folders import short_attempt

RESULT = ToolResult(status="error", is_error=True, text="")


def group(
    name: str,
    rewards: list[float | None],
    *,
    source: str = "s",
    finish: FinishReason = FinishReason.answered,
    results: int = 0,
) -> Group:
    task = Task(id=name, source=source, question="q", answer="a")
    call = ToolCall(name="t", arguments={})
    turn = Turn(start=1, end=2, text="", stopped=True, calls=(call,) * results, results=(RESULT,) * results)
    lost = Failed(kind="deadline", retryable=True, detail="")
    attempts = [
        short_attempt(task, k, lost if r is None else Scored(reward=r, method="strict"), turns=(turn,), finish=finish)
        for k, r in enumerate(rewards)
    ]
    return Group(task=task, trajectories=tuple(attempts))


def summarise(groups: list[Group], *, k: int) -> Evaluation:
    """The summary of attempts at plain tasks."""
    plain = EvaluationSet(name="heldout", tasks=(), samples=k, temperature=1.0, max_response_tokens=1, max_turns=1)
    questions = group_by_question((t for g in groups for t in g.trajectories), plain)
    return summarize(questions, set_results(questions, plain, None))


def test_correct_answers_and_rewards_have_separate_means() -> None:
    """Wrong answers with rewards, and a correct one with none; a mean of rewards 1 and 0 is not repeated."""
    given = group("a", [0.5, 0.25, 0.0, 1.0])
    verdicts = [False, False, True, True]
    siblings = tuple(
        dataclasses.replace(t, outcome=dataclasses.replace(t.outcome, is_correct=c))  # type: ignore[arg-type]
        for t, c in zip(given.trajectories, verdicts, strict=True)
    )
    found = summarise([dataclasses.replace(given, trajectories=siblings), group("b", [0.0] * 4)], k=4)
    assert (found.avg, found.pass_at_k, found.by_source) == (0.25, 0.5, {"s": 0.25})
    assert found.correct == {"a": verdicts, "b": [False] * 4}
    assert found.reward_mean == pytest.approx(0.4375 / 2)
    check_names(found.metrics("heldout"))
    assert found.metrics("heldout")["eval/heldout/reward_mean"] == found.reward_mean
    plain = summarise([group("a", [1.0, 0.0])], k=2)
    assert plain.reward_mean is None and "eval/heldout/reward_mean" not in plain.metrics("heldout")


def test_tasks_weigh_the_same_and_failures_count_neither_way() -> None:
    groups = [
        group("a", [1.0, 1.0, 0.0, 0.0], source="x"),
        group("b", [None, None, None, 1.0], source="y", results=2),
        group("c", [0.0, 0.0, 0.0, None], source="y", finish=FinishReason.max_tokens),
        group("d", [None] * 4, source="z"),
    ]
    found = summarise(groups, k=4)
    assert found.avg == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert (found.pass_at_k, found.n_short) == (1.0, 3)
    assert (found.num_tasks, found.failed) == (3, 8)
    assert found.by_source == {"x": 0.5, "y": 0.5}
    assert found.rewards == {"a": [1.0, 1.0, 0.0, 0.0], "b": [1.0], "c": [0.0, 0.0, 0.0]}
    assert found.tool_error_share == 1.0
    assert found.is_truncated == pytest.approx(3 / 8)
    assert found.ci_low <= found.avg <= found.ci_high
    metrics = found.metrics("heldout")
    check_names(metrics)
    assert metrics["eval/heldout/avg@4"] == found.avg and metrics["eval/heldout/failed"] == 8


def test_pass_at_k_needs_a_task_with_k_attempts() -> None:
    found = summarise([group("a", [1.0, None]), group("b", [None, 1.0])], k=2)
    assert (found.avg, found.pass_at_k, found.n_short) == (1.0, None, 2)
    assert "eval/heldout/pass@2" not in found.metrics("heldout")
    assert found.metrics("heldout")["eval/heldout/n_short"] == 2


def test_the_interval_of_equal_verdicts_is_not_empty() -> None:
    found = summarise([group(str(n), [1.0] * 4) for n in range(30)], k=4)
    assert found.ci_high == 1.0 and 0.85 < found.ci_low < 0.95


def test_nothing_scored_is_an_error_that_says_why() -> None:
    found = unscored_error(group("a", [None, None]).trajectories)
    assert isinstance(found, TrainingStopped) and "failures: 2 deadline; the last: " in str(found)


def test_prompts_without_room_are_a_mistake_in_the_recipe_with_lengths_and_limit() -> None:
    why = Failed(kind="too_long", retryable=False, detail="a prompt of 700 and 100 tokens; 512 is the most")
    attempts = [dataclasses.replace(t, outcome=why) for t in group("a", [None, None]).trajectories]
    found = unscored_error(attempts)
    assert isinstance(found, ConfigError)
    assert re.search(r"prompts of 1 to 1 tokens are too long .*512 is the most", str(found))
