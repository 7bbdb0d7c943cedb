"""Attempts on disk: finished ones survive any truncation, and the final file is always the same."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocstar.engine.record.json_record import RecordError
from rocstar.engine.types import Group, Scored, Task
from rocstar.train.evaluation.evaluation_folder import AttemptsFile

from .eval_folders import short_group

K = 2
TASKS = [Task(id=f"t{k}", source="s", question=f"q{k}", answer="1") for k in range(4)]


def group(task: Task) -> Group:
    return short_group(task, *(Scored(reward=float(k), method="strict") for k in range(K)))


def file_at(folder: Path) -> AttemptsFile:
    return AttemptsFile(folder / "attempts" / "x.jsonl", TASKS, k=K)


def append(file: AttemptsFile, *tasks: Task) -> None:
    asyncio.run(file.append([group(task) for task in tasks], str))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of work that nothing disturbed."""
    file = file_at(tmp_path_factory.mktemp("whole"))
    for task in TASKS:
        append(file, task)
    file.settle()
    return file.path.read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(TASKS), cut=st.floats(0, 1), zeros=st.integers(0, 3))
def test_whatever_is_cut_off_the_rest_is_done_and_the_end_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, order: list[Task], cut: float, zeros: int
) -> None:
    """A kill in the middle of an append leaves a part of it, on some disks with zeros behind."""
    folder = tmp_path_factory.mktemp("cut")
    ends, file = [0], file_at(folder)
    partial = folder / "attempts" / "x.jsonl.partial"
    for task in order:
        append(file, task)
        ends.append(partial.stat().st_size)
    size = round(cut * ends[-1])
    os.truncate(partial, size)
    with partial.open("ab") as torn:
        torn.write(bytes(zeros))
    again = file_at(folder)
    assert again.done == {task.id for task, end in zip(order, ends[1:], strict=True) if end <= size}
    for task in reversed(order):
        if task.id not in again.done:
            append(again, task)
    again.settle()
    assert again.path.read_bytes() == whole and [p.name for p in partial.parent.iterdir()] == ["x.jsonl"]


def test_what_is_settled_stays(tmp_path: Path, whole: bytes) -> None:
    file = file_at(tmp_path)
    append(file, *TASKS)
    file.settle()
    again = file_at(tmp_path)
    assert again.is_settled and again.done == {task.id for task in TASKS}
    again.settle()
    assert again.path.read_bytes() == whole


def test_tasks_are_forgotten_on_demand(tmp_path: Path, whole: bytes) -> None:
    """A share of a deterministic engine is made again as a whole."""
    file = file_at(tmp_path)
    append(file, TASKS[2], TASKS[0])
    file.keep({"t0", "t1"})
    assert file_at(tmp_path).done == file.done == {"t0"}
    append(file, *TASKS[1:])
    file.settle()
    assert file.path.read_bytes() == whole


def test_a_damaged_line_is_named_and_nothing_is_cut(tmp_path: Path) -> None:
    file = file_at(tmp_path)
    append(file, *TASKS)
    partial = tmp_path / "attempts" / "x.jsonl.partial"
    lines = partial.read_bytes().splitlines(keepends=True)
    lines[2] = b"somebody's note\n"
    partial.write_bytes(b"".join(lines))
    with pytest.raises(RecordError, match=r"partial:3: not a trajectory record"):
        file_at(tmp_path)
    assert partial.read_bytes() == b"".join(lines)
