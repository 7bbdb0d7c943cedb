"""What texts look like as numbers: loops, answers that are all alike, judges that did not finish."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.record.signs import GRAM, LEAST_GRAMS, is_timed_out, repeated_share
from rocstar.engine.types import GRADER_LIMIT, REWARD_TIMEOUT, Failed, Scored, Trajectory, Turn
from rocstar.train.groups.rollout_metrics import SAMPLE, answers_alike, text_metrics
from tests.fakes.trajectories import plain_trajectory


def attempt(task: str, answer: str, *, truth: str = "1", ids: list[int] | None = None) -> Trajectory:
    """An attempt that answers; of these policy tokens, if they are given."""
    written = ids or [1, 2]
    made = plain_trajectory(logprobs=[-0.1] * len(written), task=task)
    text = f"<answer>\\boxed{{{answer}}}</answer>" if answer else "I do not know"
    turns = (Turn(start=1, end=1 + len(written), text=text, stopped=True),)
    return replace(made, ids=(7, *written), task=replace(made.task, answer=truth), turns=turns)


@given(st.lists(st.integers(0, 3), max_size=60))
def test_repeated_grams_are_those_that_were_there_before(ids: list[int]) -> None:
    grams = [tuple(ids[k : k + GRAM]) for k in range(len(ids) - GRAM + 1)]
    expected = 1 - len(set(grams)) / len(grams) if len(grams) >= LEAST_GRAMS else 0.0
    assert repeated_share(np.array(ids, np.int32)) == expected


def test_a_loop_is_counted_and_a_short_turn_is_none() -> None:
    loop, text = [5, 6] * 30, list(range(60))
    found = text_metrics([attempt("a", "1", ids=loop), attempt("b", "1", ids=text), attempt("c", "1")])
    assert found == {"text/looping": 1 / 3, "reward/timeouts": 0.0}


def test_answers_of_unlike_tasks_are_compared_with_their_truths() -> None:
    tasks = [f"t{k}" for k in range(8)]
    assert answers_alike([attempt(task, "0", truth=str(k)) for k, task in enumerate(tasks)]) == 7 / 8
    assert answers_alike([attempt(task, "0", truth="0") for task in tasks]) == 0.0
    assert answers_alike([attempt(task, task) for task in tasks]) == 1 / 8
    assert answers_alike([attempt(task, "0") for task in tasks[:7]]) is None
    assert answers_alike([attempt(task, "") for task in tasks]) is None
    often = [attempt(task, answer) for task in tasks for answer in ("0", "0", task)]
    assert answers_alike(often) == 1.0


def test_a_judge_that_did_not_finish_is_counted_either_way() -> None:
    made = plain_trajectory(logprobs=[-0.1])
    hung = replace(made, outcome=Scored(reward=0.0, method=GRADER_LIMIT))
    lost = replace(made, outcome=Failed(kind=REWARD_TIMEOUT, retryable=False, detail=""))
    other = replace(made, outcome=Failed(kind="sandbox_lost", retryable=True, detail=""))
    assert [is_timed_out(t) for t in (made, hung, lost, other)] == [False, True, True, False]
    assert text_metrics([made, hung, lost, other])["reward/timeouts"] == 2.0
    assert text_metrics([]) == {"reward/timeouts": 0.0}


def test_a_large_step_is_sampled() -> None:
    loop = [5, 6] * 30
    many = [attempt("a", "1", ids=loop if k % 4 == 0 else None) for k in range(4 * SAMPLE)]
    assert text_metrics(many)["text/looping"] == 1.0, "every fourth is looked at"
