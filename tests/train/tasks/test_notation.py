"""Common notation, kind by kind: what is the same answer in it, and what only looks like it.

`notations.jsonl` has a line per kind with pairs of prediction and truth.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.tasks.compare import compare, is_readable
from rocstar.train.tasks.latex import clean, last_boxed
from rocstar.train.tasks.numbers import read_number, read_scientific

from .test_compare import accepted

KINDS = [json.loads(line) for line in Path(__file__).with_name("notations.jsonl").read_text().splitlines()]
SAME = [(row["kind"], *pair) for row in KINDS for pair in row["same"]]
OTHER = [(row["kind"], *pair) for row in KINDS for pair in row["other"]]


@pytest.mark.parametrize(("kind", "prediction", "truth"), SAME)
def test_another_notation_is_the_same_answer(kind: str, prediction: str, truth: str) -> None:
    assert accepted(prediction, truth)


@pytest.mark.parametrize(("kind", "prediction", "truth"), OTHER)
def test_what_only_looks_like_the_truth_is_refused(kind: str, prediction: str, truth: str) -> None:
    assert not accepted(prediction, truth)


@pytest.mark.parametrize("text", ["\\boxed{42}", "\\fbox{42}", "\\boxed {42}", "\\boxed{41} \\fbox{42}"])
def test_a_box_has_several_names(text: str) -> None:
    assert last_boxed(text) == "42"


READ = [
    "42", "3\\pi", "\\frac{1}{2}", "sqrt3/2", "1 1/4", "(1,2]", "x>3 or x<1", "Evelyn", "no solution",
    "5 apples", "10:30", "7 p.m.", "3:2:1", "\\text{A, B}", "y=2x+3",
    "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "f(x)", "\\boxed{7}", "5\\%", "O(n log n)", "\\{1, 2\\}",
    "x \\equiv 3 \\pmod 5", "1e-05", "18.5^\\circ\\text{C}", "\ufeff42",
]  # fmt: skip
UNREAD = [
    "The answer is 7", "Answer: 42", "\u2300 of nothing", "\\frac{1}{2", "(1,2", "x^", "", "-",
    "42 (see above)", "42?", "It depends on x", "<b>5</b>", "```42```", "#### 42", "3 remainder 2",
    "\\ce{H2O}", "print(5)", "https://x.y", "\\begin{cases}1\\\\2\\end{cases}", "Yes, because 2>1",
    "\u4e8c", "it's 5", "1, see solution",
]  # fmt: skip


def test_a_truth_is_read_or_counted() -> None:
    assert [text for text in READ if not is_readable(text)] == []
    assert [text for text in UNREAD if is_readable(text)] == []


LONG = [
    "a" * 5000 + "+1 = 42", "a " * 4000 + "= 42", "aa " * 3000 + "1", "^(" * 4000, "\\frac1" * 1500,
    "x^()" * 2000, "{a\\over" * 1000, "\\equiv\\mod" * 800, "x<" * 4000, "x:" * 4000, "a-" * 4000,
    "sqrt" * 2000, "1e5" * 3000, "\\text{ cm}" * 900, "\u00b2\u200b" * 4000,
    "x(" * 20 + ")" * 20 + "= 42" * 900, "\\pm" * 3000, "'" * 9000,
]  # fmt: skip


@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_a_long_text_is_compared_in_its_time(text: str) -> None:
    """Nothing is repeated inside a repetition: a box that hung here would hold up every judge."""
    assert compare(text, "42").method and compare(text, "2x \\text{ cm}").method


# ---------------------------------------------------------------- rational numbers

VALUES = st.fractions(min_value=-300, max_value=300, max_denominator=120)


def mixed(value: Fraction) -> str:
    whole, top = divmod(abs(value.numerator), value.denominator)
    return f"{'-' * (value < 0)}{whole} {top}/{value.denominator}"


NOTATIONS = (
    lambda v: f"{v.numerator}/{v.denominator}",
    lambda v: f"{v.numerator}\u2044{v.denominator}",
    lambda v: f"({v.numerator})/{v.denominator}",
    lambda v: f"{{{v.numerator}}}/{{{v.denominator}}}",
    lambda v: f"\\dfrac{{{v.numerator}}}{{{v.denominator}}}",
    lambda v: f"{{{v.numerator}\\over {v.denominator}}}",
    lambda v: ("-" * (v < 0)) + f"\\left(\\frac{{{abs(v.numerator)}}}{{{v.denominator}}}\\right)",
    lambda v: mixed(v),
    lambda v: mixed(v).replace(" ", "\\,").replace("-", "\u2212"),
    lambda v: f"${mixed(v)}$ cm",
)


@given(VALUES, VALUES, st.sampled_from(NOTATIONS), st.sampled_from(NOTATIONS))
def test_a_notation_of_a_rational_number_keeps_its_value(left, right, one, other) -> None:  # type: ignore[no-untyped-def]
    assert accepted(one(left), other(right)) == (left == right)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_as_programs_print_it_keeps_its_value(value: float) -> None:
    text = clean(repr(value))
    number = read_number(text) or read_scientific(text)
    assert number is not None and number.value == Fraction(repr(value))


# ---------------------------------------------------------------- expressions

ATOMS = [
    ("x", "x", sympy.Symbol("x")),
    ("sqrt(2)", "\\sqrt{2}", sympy.sqrt(2)),
    ("pi", "\\pi", sympy.pi),
    ("\u221a3", "\\sqrt3", sympy.sqrt(3)),
    ("\u00bd", "\\frac12", sympy.Rational(1, 2)),
]
WHOLE = st.integers(1, 9).map(lambda n: (str(n), str(n), sympy.Integer(n)))
Written = tuple[str, str, sympy.Expr]
"""An expression in plain text, in LaTeX, and its value."""


def _quotient(two: tuple[Written, Written]) -> Written:
    top, bottom = two
    return f"({top[0]})/({bottom[0]})", f"\\frac{{{top[1]}}}{{{bottom[1]}}}", top[2] / bottom[2]


def _grown(inner: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda p: (f"{p[0][0]} + {p[1][0]}", f"{p[0][1]}+{p[1][1]}", p[0][2] + p[1][2])),
        two.map(lambda p: (f"({p[0][0]})*({p[1][0]})", f"({p[0][1]})({p[1][1]})", p[0][2] * p[1][2])),
        two.map(lambda p: (f"({p[0][0]})/({p[1][0]})", f"\\frac{{{p[0][1]}}}{{{p[1][1]}}}", p[0][2] / p[1][2])),
        inner.map(lambda p: (f"({p[0]})**2", f"({p[1]})^2", p[2] ** 2)),
        inner.map(lambda p: (f"sqrt({p[0]})", f"\\sqrt{{{p[1]}}}", sympy.sqrt(p[2]))),
    )


EXPRESSIONS = st.recursive(st.sampled_from(ATOMS) | WHOLE, _grown, max_leaves=3)


@given(EXPRESSIONS, EXPRESSIONS)
def test_plain_text_is_its_latex_and_no_other(left: Written, right: Written) -> None:
    assert accepted(left[0], left[1]) or re.fullmatch("[0-9]+", left[1])
    if accepted(left[0], right[1]):
        difference = (left[2] - right[2]).subs("x", sympy.Rational(7, 3)).evalf(50)
        assert abs(difference) < sympy.Float("1e-40"), (left[0], right[1])


@given(st.text("12aepisqrtlnx\u00b2\u00bd\u221a\u03c0^*/()=<>,\u200b\n{}\\ ", max_size=24))
def test_any_text_is_compared(text: str) -> None:
    assert compare(text, "42").method and compare("42", text).method
