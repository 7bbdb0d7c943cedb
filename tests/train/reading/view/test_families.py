"""Reward by where tasks come from, from the index alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocstar.engine.record.reading import export_lines
from rocstar.train.reading.view.drawings import families, families_drawing
from rocstar.train.reading.view.listing import Listing
from rocstar.train.reading.view.trajectory_filter import filter_trajectories
from rocstar.train.reading.view.viewed_run import records_of

from .view_runs import MadeSibling, groups_of, write_step


def listed(path: Path) -> Listing:
    listing = Listing()
    listing.refresh(records_of(path))
    return listing


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Of the sums ever more are right; of the others every second one, and one failed."""
    gcd = groups_of()[0][0]
    sums = replace(gcd, id="sum", source="sum of two")
    for step in range(1, 9):
        right = [MadeSibling(correct=k < step) for k in range(8)]
        half = [MadeSibling(correct=bool(k % 2)) for k in range(4)] + [MadeSibling(correct=None)]
        write_step(tmp_path, step, [(sums, right), (gcd, half)])
    return tmp_path


def test_each_family_has_its_own_reward(run: Path) -> None:
    told = families(listed(run))
    assert [(one["name"], one["trajectories"]) for one in told] == [("sum of two", 64), ("gcd", 32)]
    assert [(one["first"], one["last"]) for one in told] == [(1.5 / 8, 7.5 / 8), (0.5, 0.5)]
    assert told[0]["rewards"] == [step / 8 for step in range(1, 9)] and told[1]["correct"] == 0.5
    chart = families_drawing(told)
    assert chart is not None and [one.label for one in chart.series] == ["sum of two", "gcd"]
    assert families_drawing(told[:1]) is None


def test_lines_have_the_same_families_and_times(run: Path, tmp_path: Path) -> None:
    columns = listed(run)
    out = tmp_path / "lines"
    export_lines(run / "trajectories", out)
    lines = listed(out)
    names = [[one.families[k] for k in one.rows["family"]] for one in (columns, lines)]
    assert names[0] == names[1]
    for column in ("seconds", "tools_s"):
        np.testing.assert_allclose(columns.rows[column], lines.rows[column])


def test_a_filter_takes_a_family_and_seconds(run: Path) -> None:
    listing = listed(run)
    assert len(filter_trajectories(listing, "family=gcd", "")) == 40
    assert len(filter_trajectories(listing, "family!=gcd step=1", "")) == 8
    assert len(filter_trajectories(listing, "family=none", "")) == 0
    assert len(filter_trajectories(listing, "seconds>3", "-seconds")) == len(listing.rows)
