"""The order in which tasks are drawn, and which of them two sets share."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.types import Task
from rocstar.train.groups.task_cursor import TaskCursor
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.rl_config import RlConfig
from rocstar.train.tasks.data import interleave_by_source
from tests.fakes.trajectories import make_group


def make_tasks(sizes: dict[str, int]) -> list[Task]:
    return [
        Task(id=f"{source}{i}", source=source, question=f"{source} {i}", answer="1")
        for source, size in sizes.items()
        for i in range(size)
    ]


def test_equal_sources_alternate_and_keep_their_order() -> None:
    mixed = interleave_by_source(make_tasks({"a": 3, "b": 3}))
    assert [task.id for task in mixed] == ["a0", "b0", "a1", "b1", "a2", "b2"]


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 30), min_size=1), st.integers(1, 20))
def test_every_stretch_has_about_the_mix_of_the_whole(sizes: dict[str, int], length: int) -> None:
    mixed = interleave_by_source(make_tasks(sizes))
    total = len(mixed)
    assert Counter(task.source for task in mixed) == sizes
    for start in range(total - length + 1):
        counts = Counter(task.source for task in mixed[start : start + length])
        for source, size in sizes.items():
            assert abs(counts[source] - length * size / total) <= len(sizes) + 1


SIZES = st.dictionaries(st.sampled_from("abc"), st.integers(1, 7), min_size=1)


@given(SIZES, st.integers(0, 3), st.lists(st.integers(0, 12), max_size=6), st.integers(1, 30))
def test_a_restored_cursor_continues_exactly(sizes: dict[str, int], seed: int, before: list[int], after: int) -> None:
    tasks = make_tasks(sizes)
    first = TaskCursor(tasks, seed=seed)
    for count in before:
        first.take(count)
    state = json.loads(json.dumps(first.state()))
    second = TaskCursor(tasks[::-1], seed=seed)
    second.restore(state)
    assert second.take(after) == first.take(after)
    assert second.state() == first.state()


@given(SIZES, st.integers(0, 3))
def test_an_epoch_shows_each_task_once_and_epochs_differ(sizes: dict[str, int], seed: int) -> None:
    tasks = make_tasks(sizes)
    cursor = TaskCursor(tasks, seed=seed)
    epochs = [tuple(task.id for task in cursor.take(len(tasks))) for _ in range(8)]
    assert all(sorted(epoch) == sorted(task.id for task in tasks) for epoch in epochs)
    if len(tasks) > 4:
        assert len(set(epochs)) > 1


def test_batches_of_one_cursor_have_one_mix() -> None:
    cursor = TaskCursor(make_tasks({"a": 8, "b": 8, "c": 8}), seed=0)
    for _ in range(10):
        assert Counter(task.source for task in cursor.take(6)) == {"a": 2, "b": 2, "c": 2}


def test_a_cursor_refuses_no_tasks_and_a_state_of_other_tasks() -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        TaskCursor([], seed=0)
    state = TaskCursor(make_tasks({"a": 3}), seed=0).state()
    with pytest.raises(ConfigError, match="other tasks or another seed"):
        TaskCursor(make_tasks({"a": 4}), seed=0).restore(state)
    with pytest.raises(ConfigError, match="other tasks or another seed"):
        TaskCursor(make_tasks({"a": 3}), seed=1).restore(state)


ADAPTIVE = RlConfig(tasks_per_step=3, retire_above=0.8, difficulty_floor=0.25)
EASY, EVEN, HARD = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)


def shown(cursor: TaskCursor, rewards: dict[str, tuple[float | None, ...]], steps: int) -> list[str]:
    """The tasks of some steps, whose groups have these rewards."""
    ids = []
    for step in range(steps):
        tasks = cursor.take(3)
        ids += [task.id for task in tasks]
        cursor.observe([make_group(task, *rewards[task.id], step=step) for task in tasks])
    return ids


REWARDS = st.dictionaries(
    st.sampled_from([f"a{k}" for k in range(9)]), st.sampled_from([EASY, EVEN, HARD, (None, 1.0, None, None)])
)


@given(REWARDS, st.integers(0, 3), st.integers(0, 9), st.integers(1, 9))
def test_a_restored_cursor_that_observes_continues_exactly(
    rewards: dict[str, tuple[float | None, ...]], seed: int, before: int, after: int
) -> None:
    tasks, of = make_tasks({"a": 9}), {f"a{k}": EVEN for k in range(9)} | rewards
    first = TaskCursor(tasks, seed=seed, rl=ADAPTIVE)
    shown(first, of, before)
    state = json.loads(json.dumps(first.state()))
    second = TaskCursor(tasks[::-1], seed=seed, rl=ADAPTIVE)
    second.restore(state)
    assert shown(second, of, after) == shown(first, of, after)
    assert second.state() == first.state()


def test_a_task_that_is_solved_comes_no_more_but_a_steps_tasks_stay() -> None:
    of = {f"a{k}": EASY if k < 6 else EVEN for k in range(9)}
    cursor = TaskCursor(make_tasks({"a": 9}), seed=0, rl=RlConfig(tasks_per_step=3, retire_above=0.8))
    assert Counter(shown(cursor, of, 3)) == {task: 1 for task in of}
    assert set(shown(cursor, of, 20)) == {"a6", "a7", "a8"}
    assert cursor.observe([]) == {"tasks/retired": 6.0}
    everything = TaskCursor(make_tasks({"a": 9}), seed=0, rl=RlConfig(tasks_per_step=3, retire_above=0.8))
    shown(everything, dict.fromkeys(of, EASY), 20)
    assert everything.observe([]) == {"tasks/retired": 6.0}
    assert sorted(set(shown(everything, dict.fromkeys(of, EASY), 5))) == sorted(set(of) - everything._retired)


def test_attempts_without_a_score_and_partial_rewards_retire_nothing() -> None:
    of = {f"a{k}": (None, None, None, None) if k < 5 else (0.9, 0.9, 0.9, 0.9) for k in range(9)}
    cursor = TaskCursor(make_tasks({"a": 9}), seed=0, rl=RlConfig(tasks_per_step=3, retire_above=0.51))
    shown(cursor, of, 12)
    assert cursor.observe([]) == {"tasks/retired": 0.0}


def test_tasks_that_teach_little_come_as_often_as_their_weight_and_none_starves() -> None:
    of = {f"a{k}": (EASY, EVEN, HARD)[k % 3] for k in range(30)}
    cursor = TaskCursor(make_tasks({"a": 30}), seed=0, rl=RlConfig(tasks_per_step=3, difficulty_floor=0.2))
    seen = Counter(shown(cursor, of, 600))
    epochs = cursor.state()["epoch"]
    easy, even, hard = (sum(seen[f"a{k}"] for k in range(first, 30, 3)) / (10 * epochs) for first in range(3))
    # Discounted counts of groups of 4 approach 8 of 8: weight 6 * 9 / (10 * 11).
    assert abs(even - 1) < 0.01 and abs(easy - 54 / 110) < 0.05 and abs(hard - 54 / 110) < 0.05
    assert set(seen) == set(of)


def test_the_floor_is_the_share_of_what_teaches_nothing() -> None:
    of = {f"a{k}": EVEN if k < 10 else EASY * 10 for k in range(20)}
    cursor = TaskCursor(make_tasks({"a": 20}), seed=1, rl=RlConfig(tasks_per_step=3, difficulty_floor=0.2))
    seen = Counter(shown(cursor, of, 400))
    share = sum(seen[f"a{k}"] for k in range(10, 20)) / (10 * cursor.state()["epoch"])
    assert abs(share - 0.2) < 0.05


@given(SIZES, st.integers(0, 3), st.lists(st.integers(0, 12), max_size=6))
def test_without_the_fields_nothing_is_observed_and_no_task_is_left_out(
    sizes: dict[str, int], seed: int, counts: list[int]
) -> None:
    tasks = make_tasks(sizes)
    plain, made = TaskCursor(tasks, seed=seed), TaskCursor(tasks, seed=seed, rl=RlConfig())
    for count in counts:
        taken = made.take(count)
        assert taken == plain.take(count)
        assert made.observe([make_group(task, *EASY) for task in taken]) == {}
    assert made.state() == plain.state() and set(made.state()) == {"epoch", "position", "fingerprint"}
