"""Charts carry the numbers that they name, and a run has one colour beside others."""

import math
from typing import Any

import pytest

from rocstar.train.reading.view.chart import Chart, Plot, Series, plot_chart
from rocstar.train.reading.view.drawings import FIRST, MAX_FIRST, charts, overlays, task_drawing
from rocstar.train.record.metrics import UnknownMetricError


def rows(phase: str = "rl", **metrics: float) -> list[dict[str, Any]]:
    return [{"phase": phase, "step": step, "stage": "one", "time_s": 1.0, **metrics} for step in (1, 2)]


def told(chart: dict[str, Any]) -> tuple[str, list[list[float | None]]]:
    """The title of a chart, and the numbers of each of its series."""
    return chart["title"], [one["y"] for one in chart["series"]]


def test_the_reward_is_the_mean_reward_and_no_share() -> None:
    """They differ where a reward is not 1 or 0; where they do not, one chart is enough."""
    partial = rows(**{"reward/mean": 0.25, "reward/correct_share": 0.5})
    assert dict(map(told, charts(partial))) == {"Reward": [[0.25, 0.25]], "Judged correct": [[0.5, 0.5]]}
    assert [told(one)[0] for one in overlays({"a": partial, "b": partial})] == ["Reward", "Judged correct"]
    same = rows(**{"reward/mean": 0.25, "reward/correct_share": 0.25})
    assert [told(one)[0] for one in charts(same)] == ["Reward"]
    assert [told(one)[0] for one in overlays({"a": same, "b": same})] == ["Reward"]


def test_a_run_has_one_colour_in_all_charts() -> None:
    """Also where the one before it has nothing to show."""
    reward = {"reward/mean": 0.5}
    drawn = overlays({"first": rows(**reward), "second": rows(**reward, **{"entropy/mean": 0.25})})
    assert [[one["color"] for one in chart["series"]] for chart in drawn] == [[0, 1], [1]]


def test_of_several_metrics_one_that_says_something_is_named_and_drawn() -> None:
    """With clip-higher tokens are clipped at the upper bound alone: the other share is 0 everywhere."""
    clipped = rows(**{"clip/low_fraction": 0.0, "clip/high_fraction": 0.25})
    (drawn,) = overlays({"first": rows(**{"clip/low_fraction": 0.0}), "second": clipped})
    assert told(drawn) == ("Clipped tokens", [[0.25, 0.25]])
    assert drawn["subtitle"] == "high, share"
    with pytest.raises(UnknownMetricError):
        plot_chart(Plot(title="", keys={"nonsense": ""}, caption=""), {"": clipped})


def test_the_first_tab_has_the_charts_that_matter_and_else_what_there_is() -> None:
    names = ["reward/mean", "tool/error_share_in_correct", "seq_len/mean", "mismatch_kl/mean", "time/step"]
    evaluation = rows("eval", **{"eval/heldout/avg@4": 0.5, "eval/heldout/ci_low": 0.4})
    full = rows(**dict.fromkeys([*names, "entropy/mean", "optim/grad_norm"], 1.0)) + evaluation
    found: dict[str, list[str]] = {}
    for one in charts(full):
        found.setdefault(one["tab"], []).append(one["title"])
    assert found["overview"] == list(FIRST)
    assert found["metrics"] == ["Entropy", "Gradient norm"]
    few = charts(rows(**{"reward/mean": 0.5, "entropy/mean": 1.0, "optim/lr": 1.0}))
    assert [one["tab"] for one in few] == ["overview"] * 3
    cold = charts(rows("sft", **{"loss/sft": 2.0, "optim/grad_norm": 1.0}))
    assert [one["title"] for one in cold] == ["SFT loss", "SFT gradient norm"]
    assert len(found["overview"]) == MAX_FIRST


def test_evaluations_are_dots_with_intervals() -> None:
    evaluation = rows("eval", **{"eval/heldout/avg@4": 0.5, "eval/heldout/ci_low": 0.4})
    reward, scores = charts(rows(**{"reward/mean": 0.5}) + evaluation)
    for one in (reward["series"][1], scores["series"][0]):
        assert (one["label"], one["dots"], one["y"]) == ("heldout", True, [0.5, 0.5])
        assert (one["low"], one["high"]) == ([0.4, 0.4], [None, None])


def test_a_value_that_is_not_finite_is_a_gap_and_steps_are_each_series_own() -> None:
    """A run that logs every tenth step has no gaps beside one that logs each."""
    series = [
        Series(label="a", points=[(1.0, math.nan), (2.0, 0.5)], color=0),
        Series(label="b", points=[(10.0, 1.0)], color=1),
    ]
    found = Chart(title="t", unit="x", series=series).as_json()["series"]
    assert [(one["x"], one["y"]) for one in found] == [([1.0, 2.0], [None, 0.5]), ([10.0], [1.0])]


def test_a_task_has_a_wide_chart() -> None:
    drawn = task_drawing({"mine": [{"step": 1, "correct": 1, "attempts": 4}]})
    assert drawn["wide"] and told(drawn) == ("Solved", [[0.25]])
