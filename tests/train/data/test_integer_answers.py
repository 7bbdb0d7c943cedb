"""The forms in which a whole number is written, and those that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.data.build_config import MAX_DIGITS
from rocstar.train.data.task_rows import read_integer

NUMBERS = {
    "42": 42, "0": 0, "-0": 0, "042": 42, "007": 7, "-5": -5, "+5": 5, "−5": -5, "- 5": -5, "42.": 42,
    "42.0": 42, "42.000": 42, "-3.00": -3, " 42 ": 42, "\n42\n": 42, "$42$": 42, "$ 7 $": 7, "$$7$$": 7,
    "\\(42\\)": 42, "\\[ 42 \\]": 42, "(42)": 42, "((42))": 42, "{42}": 42, "1,000": 1000, "1{,}000": 1000,
    "1,\\!000": 1000, "12,345,678": 12345678, "1 000": 1000, "12\\,345": 12345, "\\boxed{42}": 42,
    "$\\boxed{42}$": 42, "\\boxed{1{,}000}": 1000, "The answer is \\boxed{42}.": 42,
    "\\boxed{1} or \\boxed{2}": 2,
    "They are 6 sevens. #### 42": 42, "#### 1,000": 1000, "#### -3": -3, "\\text{42}": 42, "\\text{ 42 }": 42,
    "\\mathrm{42}": 42, "\\textbf{42}": 42, "x = 42": 42, "x=42": 42, "n = -7": -7, "f(2) = 8": 8,
    "a_1 = 3": 3, "42 \\text{ cm}": 42, "42\\text{ cm}^2": 42, "42 cm": 42, "3 hours": 3, "12 apples": 12,
    "90^\\circ": 90, "90^{\\circ}": 90, "90°": 90, "90 degrees": 90, "\\$7": 7, "\\$1,250": 1250, "€15": 15,
    "84/2": 42, "-84/2": -42, "\\frac{84}{2}": 42, "\\dfrac{84}{2}": 42, "-\\frac{6}{3}": -2,
    "\\frac{0}{5}": 0,
    "6/-3": -2, "1e3": 1000, "1E3": 1000, "4.2e1": 42, "1e+3": 1000, "2.50e2": 250, "3 \\times 10^5": 300000,
    "3 \\times 10^{5}": 300000, "1.5 \\cdot 10^3": 1500, "9" * MAX_DIGITS: 10**MAX_DIGITS - 1,
    "\\left(42\\right)": 42, "42 \\text{ mph}": 42,
}  # fmt: skip
NO_NUMBERS = (
    "", " ", "x", "42x", "2^{10}", "2^10", "10^6", "4²", "6!", "\\sqrt{16}", "3+4", "7-2", "6*7",
    "6 \\cdot 7", "3.5", "\\frac{1}{2}", "1/2", "7/2", "1/0", "\\frac{5}{0}", "3 \\frac{1}{2}", "\\pi",
    "2\\pi", "\\infty", "50%", "50\\%", "101_2", "2A_{16}", "42_{10}", "1, 2", "(1, 2)", "1 or 2", "1 and 2",
    "\\{1\\}", "[0, 1]", "x > 3", "\\pm 3", "yes", "(A) 42", "B", "forty-two", "None", "DNE", "1.5e0",
    "2.5e-1", "3:4", "12:30", "1,00", "٤٢", "42 or so", "\\text{no solution}", "1/3e2",
)  # fmt: skip
HUGE = (
    "6.5e27330467", "1e31", "9" * (MAX_DIGITS + 1), "1" * 5000, "10 \\times 10^{400}", "-1e99", "7" * 1999,
)  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items(), ids=str)
def test_a_whole_number_is_read_however_it_is_written(text: str, value: int) -> None:
    assert read_integer(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [(text, "no_integer") for text in NO_NUMBERS] + [(text, "huge_integer") for text in HUGE],
    ids=lambda text: text[:20],
)
def test_what_is_computed_approximate_several_or_huge_is_none(text: str, reason: str) -> None:
    assert read_integer(text) == reason


def test_how_many_digits_are_huge_is_a_choice() -> None:
    assert read_integer("1000", max_digits=3) == "huge_integer" and read_integer("999", max_digits=3) == 999


@given(st.integers(-(10**29), 10**29), st.sampled_from(["{}", "${}$", "\\boxed{{{}}}", "x = {}", "{}.0", "{:,}"]))
def test_any_number_comes_back(value: int, form: str) -> None:
    assert read_integer(form.format(value)) == value


@given(st.text())
def test_any_text_is_judged(text: str) -> None:
    assert isinstance(read_integer(text), int | str)
