"""The figures of an evaluation page, and the histograms that they show."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocstar.train.evaluation.report.figures import Estimate, ForestRow, align_bins, forest_plot, length_chart
from rocstar.train.evaluation.report.set_reader import CellKind, Histogram

WIDTHS = pytest.mark.parametrize("width", [1060, 340])


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", text)]


@WIDTHS
def test_marks_and_whiskers_lie_on_the_axis(width: int) -> None:
    rows = [
        ForestRow("a", "avg@4, 10 questions", [Estimate(0, 0.25, 0.0, 1.0)]),
        ForestRow("b", "avg@4, 10 questions", [Estimate(0, 0.5, None, None), Estimate(1, 0.75, 0.5, 1.0)]),
    ]
    root = ElementTree.fromstring(forest_plot("Scores", rows, width=width))
    ticks = {
        t.text: float(t.get("x", "")) for t in root.findall(".//{*}text") if (t.text or "").endswith("%")
    }
    left, right = ticks["0%"], ticks["100%"]
    assert ticks["50%"] == pytest.approx((left + right) / 2, abs=0.2)
    marks = [float(c.get("cx", "")) for c in root.findall(".//{*}circle")][2:]  # behind the two of the legend
    assert marks == pytest.approx([left + (right - left) * share for share in (0.25, 0.5, 0.75)], abs=0.2)
    (first, second) = [numbers(p.get("d", "")) for p in root.findall(".//{*}path")]
    assert (first[0], first[5]) == (left, right) and second[0] == pytest.approx(ticks["50%"], abs=0.2)
    assert float(root.get("viewBox", "").split()[3]) > max(
        float(t.get("y", 0)) for t in root.findall(".//{*}text")
    )


def test_estimates_are_told_apart_without_colour() -> None:
    estimates = [Estimate(kind, 0.5, 0.4, 0.6) for kind in range(3)]
    root = ElementTree.fromstring(forest_plot("Scores", [ForestRow("a", "", estimates)]))
    circles = list(root.findall(".//{*}circle"))
    filled = [c for c in circles if c.get("fill") != "var(--paper)"]
    diamonds = [p for p in root.findall(".//{*}path") if p.get("fill") != "none"]
    assert (len(filled), len(circles) - len(filled), len(diamonds)) == (2, 2, 2), "in the legend and the row"


def test_a_set_without_a_score_and_hostile_names_are_drawn(attack: str) -> None:
    svg = forest_plot(attack, [ForestRow(attack, attack, [])])
    assert "<script" not in svg and ElementTree.fromstring(svg) is not None


def made(**values: list[int]) -> dict[CellKind, Histogram]:
    found = {kind: Histogram() for kind in CellKind}
    for name, numbers_of in values.items():
        for value in numbers_of:
            found[CellKind(name)].add(value)
    return found


@WIDTHS
def test_correct_attempts_stand_above_the_axis_and_wrong_ones_below(width: int) -> None:
    svg = length_chart("Turns", "turns", made(correct=[1, 1, 2], wrong=[1], truncated=[1, 3]), width=width)
    root = ElementTree.fromstring(svg)
    (zero,) = (float(one.get("y1", "")) for one in root.findall(".//{*}line") if one.get("class") == "axis")
    bars = [r for r in root.findall(".//{*}rect") if r.get("rx") is None]
    bars_of: dict[str, list[tuple[float, float]]] = {}
    for bar in bars:
        place = (float(bar.get("y", "")), float(bar.get("height", "")))
        bars_of.setdefault(str(bar.get("fill")), []).append(place)
    assert [y + height for y, height in bars_of["var(--c0)"]] == pytest.approx([zero, zero], abs=0.2)
    assert [y for y, _ in bars_of["var(--c1)"]] == pytest.approx([zero], abs=0.2)
    (tall, short), ((_, wrong),) = bars_of["var(--c0)"], bars_of["var(--c1)"]
    assert tall[1] == pytest.approx(2 * short[1], abs=0.2) and wrong == pytest.approx(short[1], abs=0.2)
    assert bars_of["var(--c4)"][0][0] == pytest.approx(zero + wrong, abs=0.2), "below the wrong ones"
    told = json.loads(root.get("data-chart", ""))
    assert told["head"] == ["turns: 0", "turns: 1", "turns: 2", "turns: 3"]
    by_label = {each["label"]: each["values"] for each in told["rows"]}
    assert by_label["correct"] == ["", "2 (33.3%)", "1 (16.7%)", ""]


def test_failed_attempts_are_in_no_distribution() -> None:
    assert "nothing recorded" in length_chart("Turns", "turns", made(failed=[1, 2]))


def test_wide_bins_say_their_range() -> None:
    svg = length_chart("Length", "tokens", made(correct=[0, 100], wrong=[63]))
    assert "tokens: 100 to 103" in svg


NUMBERS = st.lists(st.integers(0, 40_000), max_size=60)


def histogram_of(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(NUMBERS)
@example([Histogram.MOST])
def test_each_bin_has_the_numbers_of_its_range(values: list[int]) -> None:
    h = histogram_of(values)
    assert len(h.bins) <= h.MOST and h.width.bit_count() == 1
    assert h.bins == [sum(i * h.width <= v < (i + 1) * h.width for v in values) for i in range(len(h.bins))]
    assert (sum(h.bins), h.number, h.total) == (len(values), len(values), sum(values))
    assert h.mean == (sum(values) / len(values) if values else None)


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_histograms_side_by_side_have_one_width(lists: list[list[int]]) -> None:
    width, bins = align_bins([histogram_of(values) for values in lists])
    assert len({len(one) for one in bins}) == 1
    for values, one in zip(lists, bins, strict=True):
        assert one == [sum(v // width == i for v in values) for i in range(len(one))]


def test_small_numbers_have_a_bin_each() -> None:
    assert (histogram_of([1, 1, 3]).width, histogram_of([1, 1, 3]).bins) == (1, [0, 2, 0, 1])
