"""A chat from inside a recorded trajectory: the place, its tokens, mistakes of the user, and the example."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rocstar.engine.record.json_record import Verdict
from rocstar.engine.record.reading import read_records, write_records
from rocstar.engine.types import HIDDEN, Task
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import records_file
from rocstar.train.served.chatting import recorded_start, solved_question
from tests.fakes.trajectories import FakeRecord, plain_trajectory, write_step_file

from ...engine.test_record import EXAMPLE
from ..reading.view.view_runs import MadeSibling, write_step

VERDICT = Verdict(bucket="kept", penalty_error=0.0, penalty_format=0.0, advantage=0.5)


def text_of(ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in ids)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Rows: two turns with a tool between, a hidden one, and one in which nothing was written."""
    path = tmp_path / "step_000002.columns"
    hidden = plain_trajectory(logprobs=[-0.5], task="h")
    hidden = replace(hidden, task=replace(hidden.task, meta={HIDDEN: True}))
    silent = replace(EXAMPLE, turns=(), key=replace(EXAMPLE.key, sibling=4))
    made = [EXAMPLE, hidden, silent]
    texts = [[text_of(t.ids[s.start : s.end].tolist()) for s in t.segments] for t in made]
    return write_step_file(
        path, [FakeRecord(trajectory=t, texts=x, verdict=VERDICT) for t, x in zip(made, texts, strict=True)]
    )


def test_a_place_is_the_tokens_before_it(records: Path) -> None:
    expected = {"": [10, 11, 12, 13], "@1": [10], "@2": [10, 11, 12]}
    lines = records.with_name("export.jsonl")
    write_records(lines, read_records(records))
    for path in (records, lines):
        for turn, ids in expected.items():
            start = recorded_start(f"{path}:0{turn}")
            assert (start.ids, start.text) == (ids, text_of(ids))
            assert start.goes_on == bool(turn)
            talk = start.history()
            assert talk.ids == ids and [m["content"] for m in talk.messages] == ["q"] + ([] if turn else ["y"])
    assert recorded_start(f"{records}:0@2").name == f"s2/t/3 of {records}, before turn 2"


def test_tokens_of_another_tokenizer_are_refused(records: Path) -> None:
    start = recorded_start(f"{records}:0@2")
    start.check_tokens(text_of)
    for other in (lambda ids: "x", lambda ids: [][ids[0]]):
        with pytest.raises(ConfigError, match="give a model with the tokenizer of that run"):
            start.check_tokens(other)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("{}", "give FILE:ROW"),
        ("{}:0@x", "give FILE:ROW"),
        ("{}:0@0", "it has no turn 0; it has 2"),
        ("{}:0@3", "it has no turn 3; it has 2"),
        ("{}:1", "asks that it is not shown"),
        ("{}:2", "the policy wrote nothing"),
        ("{}:3", "there is no row 3; there are 3"),
        ("{}x:0", "No such file"),
    ],
)
def test_a_place_that_is_none_is_one_message(records: Path, place: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recorded_start(place.format(records))


SOLVED, WRONG = MadeSibling(correct=True, calls=2), MadeSibling(correct=False)
ERRED, ALONE = MadeSibling(correct=True, errors=1), MadeSibling(correct=True, calls=0)

Group = tuple[Task, Sequence[MadeSibling]]


def group(question: str, *siblings: MadeSibling, hidden: bool = False) -> Group:
    task = Task(id=question[:9], source="s", question=question, answer="1", meta={HIDDEN: True} if hidden else {})
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
