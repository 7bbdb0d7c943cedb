"""A chat from inside a recorded trajectory: the place, its tokens, and mistakes of the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rocstar.engine.record.columns import encode_frame
from rocstar.engine.record.json_record import Verdict
from rocstar.engine.record.reading import read_records, write_records
from rocstar.engine.record.step_file import FrameFile, Judged
from rocstar.engine.types import HIDDEN, Trajectory
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.served.recorded_start import recorded_start
from tests.fakes.trajectories import plain_trajectory

from ...engine.test_record import EXAMPLE

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
    made: list[Trajectory] = [EXAMPLE, hidden, silent]
    with FrameFile(path, {}) as file:
        places = file.append(
            [encode_frame(t, [text_of(t.ids[s.start : s.end].tolist()) for s in t.segments]) for t in made]
        )
        file.seal(
            [
                Judged(trajectory=t, verdict=VERDICT, num_answers=1, place=place)
                for t, place in zip(made, places, strict=True)
            ],
            stage="one",
        )
    return path


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
            assert talk.ids == ids and [m["content"] for m in talk.messages] == ["q"] + (
                [] if turn else ["y"]
            )
    assert recorded_start(f"{records}:0@2").name == f"s2/t/3 of {records}, before turn 2"


def test_tokens_of_another_tokenizer_are_refused(records: Path) -> None:
    start = recorded_start(f"{records}:0@2")
    start.check_tokens(text_of)
    for other in (lambda ids: "x", lambda ids: [][ids[0]]):
        with pytest.raises(ConfigError, match="give a model with the tokenizer of that run"):
            start.check_tokens(other)


@pytest.mark.parametrize(
    ("place", "told"),
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
def test_a_place_that_is_none_is_one_message(records: Path, place: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        recorded_start(place.format(records))
