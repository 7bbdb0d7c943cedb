"""The question that a chat shows as an example was solved in the run with the tool, and may be shown."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rocstar.engine.types import HIDDEN, Task
from rocstar.train.record.run_directory import records_file
from rocstar.train.served.recorded_start import solved_question

from ..reading.view.view_runs import MadeSibling, write_step

SOLVED, WRONG = MadeSibling(correct=True, calls=2), MadeSibling(correct=False)
ERRED, ALONE = MadeSibling(correct=True, errors=1), MadeSibling(correct=True, calls=0)

Group = tuple[Task, Sequence[MadeSibling]]


def group(question: str, *siblings: MadeSibling, hidden: bool = False) -> Group:
    task = Task(
        id=question[:9], source="s", question=question, answer="1", meta={HIDDEN: True} if hidden else {}
    )
    return task, siblings


NONE_OF = [
    group("alone?", ALONE, WRONG),
    group("erred?", ERRED, WRONG),
    group("hidden?", SOLVED, WRONG, hidden=True),
    group("long? " * 100, SOLVED, WRONG),
    group("two\nlines?", SOLVED, WRONG),
    group("steers \x1b[2J?", SOLVED, WRONG),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").touch()
    return folder


def test_it_is_of_the_last_judged_step(run: Path) -> None:
    assert solved_question(run) is None
    write_step(run, 1, [group("first?", SOLVED, WRONG)])
    write_step(run, 2, [*NONE_OF, group("good?", WRONG, SOLVED), group("another?", SOLVED)])
    records_file(run, 3).write_bytes(b"being rolled out")
    assert solved_question(run) == solved_question(run / "checkpoints" / "step_2") == "good?"


def test_there_may_be_none(run: Path, tmp_path: Path) -> None:
    write_step(run, 1, NONE_OF)
    assert solved_question(run) is None
    assert solved_question(tmp_path) is None and solved_question(tmp_path / "nowhere") is None
