"""Lists count, sets do not, tuples have an order: each of these sentences."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.tasks.forms import Kind, equal, is_label, read_form

SMALL = st.lists(st.integers(0, 3).map(str), min_size=2, max_size=5)


def same(prediction: str, truth: str) -> bool:
    return equal(read_form(prediction, is_truth=False), read_form(truth, is_truth=True), lambda a, b: a == b)


@given(SMALL, SMALL)
def test_lists_are_counted_and_have_no_order(left: list[str], right: list[str]) -> None:
    assert same(",".join(left), ",".join(right)) == (Counter(left) == Counter(right))
    assert same(" \\text{ and } ".join(left), ",".join(right)) == (Counter(left) == Counter(right))


@given(SMALL, SMALL)
def test_sets_are_not_counted(left: list[str], right: list[str]) -> None:
    assert same(f"\\{{{','.join(left)}\\}}", f"\\{{{','.join(right)}\\}}") == (set(left) == set(right))


@given(SMALL, SMALL, st.sampled_from(["()", "[]", "[)"]), st.sampled_from(["()", "[]", "[)"]))
def test_tuples_have_an_order_and_brackets(left: list[str], right: list[str], one: str, other: str) -> None:
    is_same = same(one[0] + ",".join(left) + one[1], other[0] + ",".join(right) + other[1])
    assert is_same == (left == right and one == other)
    assert not same(",".join(left), f"({','.join(left)})")


@given(st.lists(st.lists(st.integers(0, 1).map(str), min_size=2, max_size=2), min_size=2, max_size=4), st.randoms())
def test_points_have_no_order_among_them(points: list[list[str]], rng) -> None:  # type: ignore[no-untyped-def]
    turned = rng.sample(points, len(points))
    text, other = (",".join(f"({','.join(point)})" for point in some) for some in (points, turned))
    assert same(text, other)


@given(st.text("01,;(){}[]=x\\ &^_", max_size=30))
def test_any_text_is_read(text: str) -> None:
    assert all(read_form(text, is_truth=is_truth).kind in Kind for is_truth in (True, False))


def test_labels_name_quantities() -> None:
    names = ("x", "x_{1}", "f(2)", "AB", "\\angle ABC", "\\frac{NO}{BO}", "(p,q)", "A:B", "\\text{area}", "a_{37}")
    assert all(is_label(name) for name in names)
    assert not any(is_label(text) for text in ("2x+z", "a+3z", "x^2", "41", "", "2x", "x-y", "6\\cdot 7"))
