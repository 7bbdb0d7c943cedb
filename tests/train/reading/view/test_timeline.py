"""Times as lanes: who waited when, in a trajectory and in a step."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from rocstar.engine.charts.drawing import NARROW
from rocstar.engine.record.json_record import RecordError, encode_times
from rocstar.engine.record.reading import read_folder
from rocstar.engine.types import Span, TrajectoryTimes, TurnTimes
from rocstar.train.reading.view.conversation import conversation
from rocstar.train.reading.view.listing import Listing
from rocstar.train.reading.view.timeline import MOST_LANES, drawn_lanes, timeline_of_step, trajectory_timeline
from rocstar.train.reading.view.viewed_run import records_of

from .view_runs import MadeSibling, groups_of, write_step


def bars(svg: str) -> list[tuple[float, float, str, str]]:
    """x, width, y and colour of everything drawn on a lane."""
    found = re.findall(r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)" height="12" fill="var\((--c\d)\)"/>', svg)
    return [(float(x), float(width), y, color) for x, y, width, color in found]


def test_a_trajectory_has_lanes_for_policy_tools_and_judge(viewed: Path) -> None:
    record = next(iter(read_folder(viewed / "trajectories")))  # two calls
    drawn = trajectory_timeline(record)
    assert drawn is not None
    found = bars(drawn.as_json()["screen"])
    lanes = sorted({y for _, _, y, _ in found}, key=int)
    colors = [{color for _, _, y, color in found if y == lane} for lane in lanes]
    assert colors == [{"--c7", "--c0"}, {"--c2"}, {"--c4"}]
    by_color = {color: [(x, w) for x, w, _, c in found if c == color] for color in ("--c0", "--c2", "--c7")}
    second = (by_color["--c2"][1][0] - by_color["--c2"][0][0]) / 1.5  # pixels of a second
    assert [w for _, w in by_color["--c0"]] == pytest.approx([0.75 * second, second, second], abs=0.2)
    assert [w for _, w in by_color["--c7"]] == pytest.approx([0.25 * second], abs=0.2)
    told = conversation(record)
    assert told["turns"][0]["written"] == [0.5, 1.5] and told["turns"][0]["ran"] == [0.5]
    assert told["times"]["writing_s"] == 3.0 and told["times"]["tools_s"] == 1.0


def test_a_record_from_before_there_were_times_has_none(viewed: Path) -> None:
    record = {**next(iter(read_folder(viewed / "trajectories")))}
    del record["times"]
    told = conversation(record)
    assert trajectory_timeline(record) is None and told["times"] is None
    assert told["turns"][0]["written"] is None and told["turns"][0]["ran"] == []


def test_thousands_of_turns_are_as_many_parts_as_can_be_told_apart() -> None:
    turns = tuple(TurnTimes(written=Span(k, k + 0.6), calls=(Span(k + 0.6, k + 0.9),)) for k in range(5000))
    times = TrajectoryTimes(began=0.0, ended_s=5000.0, granted_s=0.0, turns=turns)
    drawn = trajectory_timeline({"times": encode_times(times)})
    assert drawn is not None
    assert all(len(bars(drawn.as_json()[form])) < 1100 for form in ("screen", "phone"))


def test_a_step_shows_those_that_ended_last(tmp_path: Path) -> None:
    task = groups_of()[0][0]
    siblings = [MadeSibling(correct=True, calls=k % 3) for k in range(MOST_LANES + 6)]
    write_step(tmp_path, 4, [(task, siblings)])
    write_step(tmp_path, 6, groups_of())
    listing = Listing()
    listing.refresh(records_of(tmp_path))
    told = timeline_of_step(listing, 4)
    assert (told["before"], told["after"]) == (None, 6)
    assert len(told["rows"]) == MOST_LANES and told["sums"]["trajectories"] == len(siblings)
    shown = [row["sibling"] for row in told["rows"]]
    assert shown == sorted(shown) and {0, 1, 3} & set(shown) == set(), "the first ones ended long before"
    first = told["rows"][0]
    assert first["began_s"] == 0.0 and first["seconds"] == first["writing_s"] + first["tools_s"] + 0.75
    sums = told["sums"]
    assert sums["seconds"] == pytest.approx(sums["policy"] + sums["tools"] + sums["rest"])
    lanes = {y for _, _, y, _ in bars(told["drawing"]["screen"])}
    assert len(lanes) == MOST_LANES and f"of {len(siblings)} trajectories" in told["drawing"]["caption"]
    with pytest.raises(RecordError, match="no records of a step 5"):
        timeline_of_step(listing, 5)


def test_names_of_siblings_are_told_apart_where_there_is_little_room() -> None:
    """On a phone a lane has seven characters for its name."""
    names = ["03cf46848e9daae4 #2", "03cf46848e9daae4 #13", "turn 1", "python_code, 2"]
    draw = partial(drawn_lanes, "Times", names, [], 1.0)
    shown = re.findall(r'text-anchor="end">(.*?)</text>', draw(width=NARROW, height=250))
    assert shown == ["03c… #2", "03… #13", "turn 1", "python…"]
    assert "03cf46848e9daae4 #13" in draw(width=1060, height=250)
