"""Rows of a chart: marks lie where their values do, and no text leaves the drawing."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.charts.drawing import NARROW
from rocstar.engine.charts.row_chart import KINDS, ChartRow, Mark, RowChart, row_chart

WIDTHS = pytest.mark.parametrize("width", [1060, NARROW])
EDGES = st.floats(allow_nan=False) | st.none()
TICKS = {0.0: "0%", 0.5: "50%", 1.0: "100%"}


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", text)]


@WIDTHS
def test_marks_and_whiskers_lie_on_the_axis(width: int) -> None:
    rows = [
        ChartRow("a", [Mark(0.25, 0.0, 1.0)], detail="10 questions", reference=0.5),
        ChartRow("b", [Mark(0.5), Mark(0.75, 0.5, 1.0, kind=1)], detail="10 questions"),
    ]
    svg = row_chart(RowChart(title="Scores", rows=rows, ticks=TICKS), width=width)
    root = ElementTree.fromstring(svg)
    texts = {t.text: float(t.get("x", "")) for t in root.findall("{*}text") if t.text in TICKS.values()}
    left, right = texts["0%"], texts["100%"]
    assert texts["50%"] == pytest.approx((left + right) / 2, abs=0.2)
    marks = [float(c.get("cx", "")) for c in root.findall("{*}circle")]
    assert marks == pytest.approx([left + (right - left) * share for share in (0.25, 0.5, 0.75)], abs=0.2)
    reference, first, second = (numbers(p.get("d", "")) for p in root.findall("{*}path"))
    assert reference[0] == texts["50%"] and (first[0], first[5]) == (left, right)
    assert second[0] == pytest.approx(texts["50%"], abs=0.2)
    assert float(root.get("viewBox", "").split()[3]) > max(float(t.get("y", 0)) for t in root.iter())


def test_kinds_differ_without_colour() -> None:
    marks = [Mark(0.5, 0.4, 0.6, kind=kind) for kind in range(len(KINDS))]
    legend = {mark.kind: str(mark.kind) for mark in marks}
    chart = RowChart(title="t", rows=[ChartRow("a", marks)], ticks=TICKS, legend=legend)
    root = ElementTree.fromstring(row_chart(chart))
    circles = list(root.findall("{*}circle"))
    filled = [c for c in circles if c.get("fill") != "var(--paper)"]
    diamonds = [p for p in root.findall("{*}path") if p.get("fill") != "none"]
    assert (len(filled), len(circles) - len(filled), len(diamonds)) == (2, 2, 2), "in the legend and the row"


@WIDTHS
@given(value=st.floats(), low=EDGES, high=EDGES, name=st.text(max_size=20))
def test_any_number_and_name_is_xml(
    width: int, value: float, low: float | None, high: float | None, name: str
) -> None:
    name = 5 * "".join(c for c in name if c.isprintable())
    rows = [
        ChartRow(name, [Mark(value, low, high, text="1.0 [0.5, 1.5]", short="1.0")], detail=name),
        ChartRow("b", []),
    ]
    svg = row_chart(RowChart(title=name, rows=rows, ticks=TICKS, line=(0.5, name)), width=width)
    root = ElementTree.fromstring(svg)
    shapes = [e for e in root.iter() if not e.tag.endswith(("text", "tspan"))]
    assert not [v for e in shapes for k, v in e.attrib.items() if k != "aria-label" and ("nan" in v or "inf" in v)]


def test_names_cannot_act() -> None:
    attack = "<script>alert(1)</script>\"'"
    chart = RowChart(title=attack, rows=[ChartRow(attack, [], detail=attack)], ticks=TICKS, legend={0: attack})
    svg = row_chart(chart)
    assert "<script" not in svg and ElementTree.fromstring(svg) is not None
