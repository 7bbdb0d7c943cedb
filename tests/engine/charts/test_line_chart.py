"""Charts: what they draw is what they were given."""

import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.charts.bars import stacked_bars
from rocstar.engine.charts.drawing import NARROW, format_tick, format_value
from rocstar.engine.charts.line_chart import Chart, Interval, Series, line_chart, running_mean, spread


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


def labels_of(svg: str) -> list[str]:
    texts = ElementTree.fromstring(svg).findall("{*}text[@class='label']")
    return [text.text or "" for text in texts]


@pytest.mark.parametrize("width", [520, NARROW])
def test_the_number_at_the_end_of_a_curve_is_its_last_value(width: int) -> None:
    """Of thirty points a running mean is drawn; 0.97 would be that of these, 1.41 is what was measured."""
    points: list[tuple[float, float | None]] = [(float(i), 0.97) for i in range(29)]
    chart = Chart(title="t", unit="x", series=[Series(label="a", points=[*points, (29.0, 1.41)], color=0)])
    svg = line_chart(chart, width=width)
    assert labels_of(svg) == ["a 1.41"]
    assert json.loads(ElementTree.fromstring(svg).attrib["data-chart"])["rows"][0]["values"][-1] == "1.41"
    last = ElementTree.fromstring(svg).find("{*}circle[@class='last']")
    label = ElementTree.fromstring(svg).find("{*}text[@class='label']")
    assert last is not None and label is not None
    assert float(label.attrib["y"]) == pytest.approx(float(last.attrib["cy"]) + 4, abs=0.1), (
        "beside its point"
    )


def test_a_value_that_the_last_step_does_not_have_names_its_step() -> None:
    points = [(1.0, 0.5), (2.0, 0.25), (3.0, None)]
    for label, told in (("a", "a step 2: 25%"), ("", "step 2: 25%")):
        chart = Chart(title="t", unit="share", series=[Series(label=label, points=points, color=0)])
        assert labels_of(line_chart(chart)) == [told]


@pytest.mark.parametrize("width", [1060, 520, NARROW])
def test_no_text_leaves_the_drawing(width: int) -> None:
    """At 7.8 units for a character, which is as wide as the fonts of the sheet are."""
    series = [
        Series(label=name, points=[(float(i), 1e4 + i) for i in range(40)], color=0)
        for name in ("longest", "mean")
    ]
    drawings = [line_chart(Chart(title="Length", unit="tokens", series=series), width=width)]
    names = ["kept", "dropped positive", "dropped negative", "no signal", "failed"]
    parts = {name: [1.0, 2.0] for name in names}
    colors = dict.fromkeys(names, 0)
    drawings.append(stacked_bars("Ledger", "trajectories", [1, 2], parts, colors=colors, width=width))
    for svg in drawings:
        root = ElementTree.fromstring(svg)
        assert root.attrib["viewBox"].split()[2] == str(width) and "width" not in root.attrib
        for text in root.findall("{*}text"):
            size = 7.8 if text.attrib["class"] == "label" else 6.1
            if text.attrib.get("text-anchor") is None and text.attrib["class"] != "title":
                assert float(text.attrib["x"]) + size * len(text.text or "") <= width, text.text


def test_a_legend_that_takes_two_rows_covers_no_bar() -> None:
    names = ["generate", "tool wait", "reward", "learn", "publish", "checkpoint", "other"]
    svg = stacked_bars("t", "s", [1], {n: [1.0] for n in names}, colors=dict.fromkeys(names, 0), width=NARROW)
    rects = [r.attrib for r in ElementTree.fromstring(svg).findall("{*}rect")]
    legend, bars = ([r for r in rects if ("rx" in r) == marked] for marked in (True, False))
    assert len({r["y"] for r in legend}) == 2
    assert max(float(r["y"]) + 9 for r in legend) < min(float(r["y"]) for r in bars)


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
    assert format_tick(1.5e-7, "nats") == "1.5e-7"
    assert format_tick(2000, "tokens") == "2,000" and format_tick(20_000, "tokens") == "20,000"
    assert running_mean([(0, 1.0), (1, None), (2, 3.0)]) == [(0, 1.0), (1, None), (2, 3.0)]
    assert running_mean([(0, 1.0), (1, 2.0), (2, 6.0)])[1] == (1, 3.0)


def test_a_band_surrounds_its_curve_which_is_drawn_as_it_is() -> None:
    points = [(float(i), float(i % 2)) for i in range(20)]
    band = [(x, y, y + 0.5) for x, y in points]
    series = Series(label="a", points=points, color=0, band=band)
    chart = Chart(title="t", unit="nats", series=[series], over="token", is_smoothed=False)
    root = ElementTree.fromstring(line_chart(chart))
    (line,), (around,) = (root.findall(f"{{*}}{name}") for name in ("polyline", "polygon"))
    places, edge = line.attrib["points"].split(), around.attrib["points"].split()
    assert len(places) == 20 and edge[:19:-1] == places, "the lower edge lies on the curve"
    assert len({place.split(",")[1] for place in places}) == 2, "not smoothed"
    assert json.loads(root.attrib["data-chart"])["head"][1] == "token 1"
