"""avg@k, pass@k and their interval; attempts that Failed count neither way."""

import dataclasses
from collections.abc import AsyncIterator
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.progress import ProgressBoard
from rocstar.engine.types import (
    Failed,
    FinishReason,
    Group,
    Origin,
    Scored,
    Segment,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryKey,
    Turn,
)
from rocstar.train import evaluate as evaluate_module
from rocstar.train.config import ConfigError, TrainingStopped
from rocstar.train.evaluate import bootstrap_interval, evaluate, summarise
from rocstar.train.metrics import check_names

RESULT = ToolResult(status="error", is_error=True, text="")


def attempt(
    task: Task, sibling: int, reward: float | None, *, finish: FinishReason, results: int
) -> Trajectory:
    call = ToolCall(name="t", arguments={})
    turn = Turn(start=1, end=2, text="", stopped=True, calls=(call,) * results, results=(RESULT,) * results)
    return Trajectory(
        key=TrajectoryKey(seed=0, step=0, task_id=task.id, sibling=sibling),
        task=task,
        ids=(1, 2),
        logprobs=(None, -1.0),
        segments=(
            Segment(start=0, end=1, origin=Origin.prompt),
            Segment(start=1, end=2, origin=Origin.policy),
        ),
        version_spans=(),
        turns=(turn,),
        finish_reason=finish,
        outcome=Scored(reward=reward, method="strict")
        if reward is not None
        else Failed(kind="deadline", retryable=True, detail=""),
    )


@pytest.mark.parametrize("what", ["evaluation", "two: difficulty filter"])
async def test_who_watches_sees_how_many_tasks_are_done(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    board, seen = ProgressBoard(), []
    groups = [group(name, [1.0, 0.0]) for name in "abc"]

    async def run_groups(*_: Any, **__: Any) -> AsyncIterator[Group]:
        for made in groups:
            (work,) = board.works
            assert work.attempts is not None
            seen.append((work.what, work.done, work.total, work.unit, work.attempts.total))
            yield made

    monkeypatch.setattr(evaluate_module, "run_groups", run_groups)
    nobody: Any = None
    options = {} if what == "evaluation" else {"what": what}
    with board.installed():
        result, found = await evaluate(nobody, [g.task for g in groups], k=2, seed=0, step=0, **options)
    assert seen == [(what, done, 3, "tasks", 6) for done in range(3)]
    assert found == groups and result.avg == 0.5 and not board.works


def group(
    name: str,
    rewards: list[float | None],
    *,
    source: str = "s",
    finish: FinishReason = FinishReason.answered,
    results: int = 0,
) -> Group:
    task = Task(id=name, source=source, question="q", answer="a")
    attempts = [attempt(task, k, reward, finish=finish, results=results) for k, reward in enumerate(rewards)]
    return Group(task=task, trajectories=tuple(attempts))


def test_tasks_weigh_the_same_and_failures_count_neither_way() -> None:
    groups = [
        group("a", [1.0, 1.0, 0.0, 0.0], source="x"),
        group("b", [None, None, None, 1.0], source="y", results=2),
        group("c", [0.0, 0.0, 0.0, None], source="y", finish=FinishReason.max_tokens),
        group("d", [None] * 4, source="z"),
    ]
    found = summarise(groups, k=4)
    assert found.avg == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert found.pass_at_k == pytest.approx(2 / 3)
    assert (found.num_tasks, found.failed) == (3, 8)
    assert found.by_source == {"x": 0.5, "y": 0.5}
    assert found.rewards == {"a": [1.0, 1.0, 0.0, 0.0], "b": [1.0], "c": [0.0, 0.0, 0.0]}
    assert found.tool_error_share == 1.0
    assert found.is_truncated == pytest.approx(3 / 8)
    assert found.ci_low <= found.avg <= found.ci_high
    metrics = found.metrics("heldout")
    check_names(metrics)
    assert metrics["eval/heldout/avg@4"] == found.avg and metrics["eval/heldout/failed"] == 8


def test_nothing_scored_is_an_error_that_says_why() -> None:
    with pytest.raises(TrainingStopped, match="no attempt could be scored; failures: 2 deadline"):
        summarise([group("a", [None, None])], k=2)


def test_prompts_without_room_are_a_mistake_in_the_recipe_with_lengths_and_limit() -> None:
    found = group("a", [None, None])
    why = Failed(kind="too_long", retryable=False, detail="a prompt of 700 and 100 tokens; 512 is the most")
    attempts = tuple(dataclasses.replace(t, outcome=why) for t in found.trajectories)
    with pytest.raises(ConfigError, match=r"prompts of 1 to 1 tokens are too long .*512 is the most"):
        summarise([dataclasses.replace(found, trajectories=attempts)], k=2)


rewards = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4), min_size=1, max_size=12)


@given(rewards=rewards, seed=st.integers(0, 3))
def test_the_interval_holds_the_mean_and_is_reproducible(rewards: list[list[float]], seed: int) -> None:
    low, high = bootstrap_interval(rewards, seed=seed)
    mean = fmean(fmean(r) for r in rewards)
    assert 0.0 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1.0
    assert bootstrap_interval(rewards, seed=seed) == (low, high)


def test_one_task_has_no_interval_and_equal_tasks_have_no_width() -> None:
    assert bootstrap_interval([[1.0, 0.0]]) == (0.5, 0.5)
    assert bootstrap_interval([[1.0, 0.0]] * 9) == (0.5, 0.5)


def test_the_interval_is_that_of_resampled_tasks() -> None:
    """64 tasks, half of them solved: the binomial interval is 0.5 +- 1.96 * 0.0625."""
    low, high = bootstrap_interval([[1.0] * 4] * 32 + [[0.0] * 4] * 32)
    assert low == pytest.approx(0.5 - 0.1225, abs=0.02) and high == pytest.approx(0.5 + 0.1225, abs=0.02)


def test_attempts_of_a_task_stay_together() -> None:
    """The same 256 attempts, independent or alike within their tasks: alike ones tell less."""
    alike = bootstrap_interval([[1.0] * 4, [0.0] * 4] * 32)
    mixed = bootstrap_interval([[1.0, 0.0, 1.0, 0.0]] * 64)
    assert mixed == (0.5, 0.5) and alike[1] - alike[0] > 0.2
