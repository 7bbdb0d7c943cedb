"""The order in which tasks are drawn, and which of them two sets share."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.types import Task
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import TaskCursor, interleave_by_source


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
