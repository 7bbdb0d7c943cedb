"""Drawings are of the numbers that they name, and a run has one colour beside others."""

import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

from rocstar.train.reading.view.drawings import charts, overlays, task_drawing


def rows(**metrics: float) -> list[dict[str, Any]]:
    return [{"phase": "rl", "step": step, "stage": "one", "time_s": 1.0, **metrics} for step in (1, 2)]


def told(drawn: dict[str, Any]) -> tuple[str, list[list[str]]]:
    """The title of a drawing, and the numbers of each of its curves."""
    svg = ElementTree.fromstring(drawn["screen"])
    return svg.attrib["aria-label"], [one["values"] for one in json.loads(svg.attrib["data-chart"])["rows"]]


def test_the_reward_is_the_mean_reward_and_no_share() -> None:
    """They differ where a reward is not 1 or 0; where they do not, one drawing is enough."""
    partial = rows(**{"reward/mean": 0.25, "reward/correct_share": 0.5})
    assert dict(map(told, charts(partial))) == {
        "Reward": [["0.25", "0.25"]],
        "Judged correct": [["50%", "50%"]],
    }
    assert [told(one)[0] for one in overlays({"a": partial, "b": partial})] == ["Reward", "Judged correct"]
    same = rows(**{"reward/mean": 0.25, "reward/correct_share": 0.25})
    assert [told(one)[0] for one in charts(same)] == ["Reward"]
    assert [told(one)[0] for one in overlays({"a": same, "b": same})] == ["Reward"]


def test_a_run_has_one_colour_in_all_drawings() -> None:
    """Also where the one before it has nothing to show."""
    reward = {"reward/mean": 0.5}
    drawn = overlays({"first": rows(**reward), "second": rows(**reward, **{"entropy/mean": 0.25})})
    colours = [sorted(set(re.findall(r'class="curve" stroke="(.*?)"', one["screen"]))) for one in drawn]
    assert colours == [["var(--c0)", "var(--c1)"], ["var(--c1)"]]


def test_a_plot_says_which_of_its_metrics_is_drawn() -> None:
    both = rows(**{"num_turns/mean": 2.0, "tool/calls_mean": 1.0})
    (drawn,) = overlays({"first": both, "second": both})
    assert ">turns, per trajectory</tspan>" in drawn["screen"]


def test_of_several_metrics_one_that_says_something_is_drawn() -> None:
    """With clip-higher tokens are held by the upper bound alone: the other share is 0 all over."""
    clipped = rows(**{"clip/low_fraction": 0.0, "clip/high_fraction": 0.25})
    (drawn,) = overlays({"first": rows(**{"clip/low_fraction": 0.0}), "second": clipped})
    assert told(drawn) == ("Clipped tokens", [["25%", "25%"]])
    assert ">high, " in drawn["screen"]


def test_a_drawing_that_stands_alone_fills_a_screen_and_is_not_blown_up() -> None:
    drawn = task_drawing({"mine": [{"step": 1, "correct": 1, "attempts": 4}]})
    assert drawn["wide"] and 'viewBox="0 0 1060 ' in drawn["screen"]
