"""Counts in bins that widen: no number is lost, and each lies in its bin."""

from hypothesis import example, given
from hypothesis import strategies as st

from rocstar.train.evaluation.report.histogram import Histogram, aligned

NUMBERS = st.lists(st.integers(0, 40_000), max_size=60)


def made(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(NUMBERS)
@example([Histogram.MOST])
def test_each_bin_has_the_numbers_of_its_range(values: list[int]) -> None:
    h = made(values)
    assert len(h.bins) <= h.MOST and h.width.bit_count() == 1
    assert h.bins == [sum(i * h.width <= v < (i + 1) * h.width for v in values) for i in range(len(h.bins))]
    assert (sum(h.bins), h.number, h.total) == (len(values), len(values), sum(values))
    assert h.mean == (sum(values) / len(values) if values else None)


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_histograms_side_by_side_have_one_width(lists: list[list[int]]) -> None:
    width, bins = aligned([made(values) for values in lists])
    assert len({len(one) for one in bins}) == 1
    for values, one in zip(lists, bins, strict=True):
        assert one == [sum(v // width == i for v in values) for i in range(len(one))]


def test_small_numbers_have_a_bin_each() -> None:
    assert (made([1, 1, 3]).width, made([1, 1, 3]).bins) == (1, [0, 2, 0, 1])
