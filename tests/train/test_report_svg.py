"""Charts: what they draw is what they were given."""

import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.report_page import page
from rocstar.train.report_scales import format_tick, format_value, nice_ticks, running_mean, spread
from rocstar.train.report_svg import Chart, Interval, Series, line_chart, stacked_bars


def test_the_hover_data_are_the_values_of_the_curves() -> None:
    chart = Chart(
        title="t", unit="share",
        series=[Series(label="a", points=[(1, 0.5), (2, None)], color=0)],
        intervals=[
            Interval(x=2, value=0.25, low=0.2, high=0.3, label="e"),
            Interval(x=3, value=1, low=None, high=None, label="e"),
        ],
    )  # fmt: skip
    svg = line_chart(chart)
    data = json.loads(ElementTree.fromstring(svg).attrib["data-chart"])
    assert data["head"] == ["step 1", "step 2", "step 3"]
    assert data["rows"][0]["values"] == ["50%", "", ""]
    assert data["rows"][1]["values"] == ["", "25% [20%, 30%]", "100%"]
    assert svg.count("<polyline") == 1


def test_a_gap_breaks_the_line() -> None:
    points = [(float(i), None if i == 5 else 1.0) for i in range(10)]
    svg = line_chart(Chart(title="t", unit="x", series=[Series(label="", points=points, color=0)]))
    assert svg.count("<polyline") == 2
    svg = line_chart(
        Chart(title="t", unit="x", series=[Series(label="", points=[(0.0, None), (1.0, None)], color=0)])
    )
    assert "nothing recorded" in svg


def test_bars_stack_to_their_sum() -> None:
    svg = stacked_bars("t", "s", [1, 2], {"a": [1.0, 0.0], "b": [3.0, 2.0]}, colors={"a": 0, "b": 1})
    rects = [r.attrib for r in ElementTree.fromstring(svg).findall("{*}rect") if "rx" not in r.attrib]
    first = sorted(float(r["y"]) + float(r["height"]) for r in rects if r["x"] == rects[0]["x"])
    assert len(rects) == 3
    assert len(first) == 2
    assert min(float(r["y"]) for r in rects) == pytest.approx(first[0] - 3 * (first[1] - first[0]), abs=0.2)
    assert json.loads(ElementTree.fromstring(svg).attrib["data-chart"])["head"] == [
        "step 1: 4.00 s",
        "step 2: 2.00 s",
    ]
    assert "nothing recorded" in stacked_bars("t", "s", [], {}, colors={})


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_enclose_their_range_in_round_steps(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    slack = 1e-6 * max(1e-300, ticks[-1] - ticks[0]) + 1e-6 * abs(low)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert ticks == sorted(set(ticks))


@given(st.lists(st.floats(0, 200), max_size=6))
def test_labels_never_touch(ys: list[float]) -> None:
    placed = spread(sorted(ys), 14.0, 200.0)
    assert all(b - a >= 14.0 - 1e-6 for a, b in pairwise(placed))
    assert all(y <= 200.0 for y in placed)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.041, "share", "4.1%"), (0.0, "share", "0%"), (0.96, "share", "96%"), (0.833, "reward", "0.83"),
        (1240.4, "tokens", "1,240"), (143.2, "tokens", "143"), (12.34, "s", "12.3 s"), (0.0, "s", "0 s"),
        (2e-5, "per step", "2e-05"),
    ],
)  # fmt: skip
def test_values_read_as_a_person_writes_them(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_small_helpers() -> None:
    assert format_tick(0.05, "share") == "5%"
    assert format_tick(2000, "tokens") == "2,000"
    assert running_mean([(0, 1.0), (1, None), (2, 3.0)]) == [(0, 1.0), (1, None), (2, 3.0)]
    assert running_mean([(0, 1.0), (1, 2.0), (2, 6.0)])[1] == (1, 3.0)
    assert "<title>a &lt; b</title>" in page("a < b", [])
