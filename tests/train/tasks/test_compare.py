"""What is equal to a truth, and what only looks like it. No sandbox: algebra runs here, on our texts."""

import re
from fractions import Fraction

import pytest
import sympy
from hypothesis import assume, given
from hypothesis import strategies as st

from rocstar.train.tasks import grader_symbolic, latex
from rocstar.train.tasks.compare import compare
from rocstar.train.tasks.latex import clean
from rocstar.train.tasks.numbers import read_number


def accepted(prediction: str, truth: str) -> bool:
    found = compare(prediction, truth)
    answers = {
        question: grader_symbolic.verdict_of(question[0], grader_symbolic.parse(question[1])) == "1"
        for question in found.questions
    }
    return found.decide(answers) if answers else found.verdict


@given(st.sampled_from([*latex._SAME_LATEX, *latex._SAME_COMMANDS, *latex._SAME]), st.data())
def test_a_text_with_a_pattern_has_one_of_its_parts(rule: latex._Rule, data: st.DataObject) -> None:
    parts, pattern, _ = rule
    text = data.draw(st.from_regex(pattern))
    assert any(part in text for part in parts), (pattern, text)


EQUAL = [
    ("42", "42.0"), ("042", "42"), ("+42", "42"), ("42.", "42"), ("$42$", "42"), ("(42)", "42"), ("-0", "0"),
    ("1{,}234", "1234"), ("1\\,234", "1234"), ("11,\\! 111,\\! 111,\\! 100", "11111111100"),
    ("\\$1,234", "1234"),
    ("84/2", "42"), ("\\frac{84}{2}", "42"), ("\\dfrac12", "0.5"), ("-\\frac{1}{2}", "\\frac{-1}{2}"),
    ("918\\frac{1}{2}", "918.5"), ("x = 42", "42"), ("x\\approx11", "11"), ("1000,99", "1000.99"),
    ("1.22", "1,22"), ("9" * 6000, "9" * 6000 + ".0"), ("\u22127", "-7"),
    ("\\frac{10}{3} \\approx 3.33", "10/3"),
    ("42\\text{ cm}", "42"), ("125\\textnormal{ miles}", "125 miles"), ("90", "90^\\circ"),
    ("28 percent", "28\\%"),
    ("10\\text{ ft}^2", "10 square feet"), ("5\\text{ apples}", "5"), ("$5", "5\\text{ dollars}"),
    ("1011_{2}", "1011_2"), ("1011_{\\text{two}}", "1011_2"),
    ("\\text{Yes}", "Yes"), ("\\mathrm{even}", "even"), ("yes", "\\textbf{Yes}"), ("\\text{(C)}", "C"),
    ("A B C", "ABC"),
    ("(3,2)", "(p,q)=(3,2)"), ("(5,2),(7,2)", "p=5,q=2;p=7,q=2"), ("4, 5", "AB=4,CD=5"), ("2, -2", "\\pm 2"),
    ("a_{37} = 19, \\quad a_3 = 2", "a_3 = 2, a_{37} = 19"), ("21,16,11", "21,16$ or $11"), ("-2, 1", "1,-2"),
    ("\\{2,1\\}", "\\{1,2\\}"), ("2,1", "\\{1,2\\}"), ("(1,4.5)", "(1,\\frac{9}{2})"), ("0", "1=y=x=0"),
    ("\\begin{bmatrix}1&0.5\\end{bmatrix}", "\\begin{pmatrix} 1 & \\frac12\\end{pmatrix}"),
    ("\\sqrt{117}", "3\\sqrt{13}"), ("\\sec^2(y)", "\\tan^2(y)+1"), ("y = x^2+2x+1", "(x+1)^2"),
    ("4^{50}", "2^{100}"),
    ("2x=4", "4x=8"), ("5 \\leq x", "x \\geq 5"), ("1<x<2", "2>x>1"), ("(5,\\infty)", "x>5"),
    ("2^{-99}", "\\frac{1}{2^{99}}"),
    ("x \\in [-1,2]", "[-1,2]"), ("(-\\infty,-1]\\cup[2,\\infty)", "[2,\\infty)\\cup(-\\infty,-1]"),
    ("b+a", "a+b"),
    ("F_n = \\sum_{k=0}^{n-1} F_{n-k-1} F_k", "F_n = \\sum_{k=0}^{n-1} F_k F_{n-k-1}"),
    ("0.5\\pi", "\\frac{\\pi}{2}"),
]  # fmt: skip


@pytest.mark.parametrize(("prediction", "truth"), EQUAL)
def test_another_spelling_is_the_same_answer(prediction: str, truth: str) -> None:
    assert accepted(prediction, truth)


def test_an_empty_side_equals_nothing() -> None:
    assert not any(accepted(left, right) for left in ("", "$", " ") for right in ("", "$", "0"))


# ---------------------------------------------------------------- numbers

SPELLINGS = (
    lambda v: f"\\frac{{{v.numerator}}}{{{v.denominator}}}",
    lambda v: f"{v.numerator}/{v.denominator}",
    lambda v: f"x = {v.numerator}/{v.denominator}",
    lambda v: f"$\\left(\\dfrac{{{v.numerator}}}{{{v.denominator}}}\\right)$.",
    lambda v: f"{v.numerator:,}" if v.denominator == 1 else f"{v.numerator}/{v.denominator}",
    lambda v: f"{v.numerator}.00" if v.denominator == 1 else f"{v.numerator} / {v.denominator}",
)
values = st.fractions(min_value=-2000, max_value=2000, max_denominator=12)


@given(values, values, st.sampled_from(SPELLINGS), st.sampled_from(SPELLINGS[:2]))
def test_numbers_are_equal_iff_their_values_are(left, right, one, other) -> None:  # type: ignore[no-untyped-def]
    assert accepted(one(left), other(right)) == (left == right)
    assert accepted(one(left), other(left))


PLAIN = st.text("0123456789.,/-+ {}()$_%!^x=\\frac", max_size=12) | st.text(max_size=12)


def value_of(box: str) -> Fraction | None:
    """A second, independent reader: digits, one point and one fraction bar only."""
    box = re.sub(
        r"^[a-z] ?=|[$ ]|\.$", "", re.sub(r"\\frac *\{([-+]?\d+)\} *\{([-+]?\d+)\}", r"\1/\2", box), flags=re.ASCII
    )
    box = re.sub(
        r"\\frac *(\d|\{\d+\}) *(\d|\{\d+\})", lambda m: f"{m[1].strip('{}')}/{m[2].strip('{}')}", box, flags=re.ASCII
    )
    while len(box) > 1 and (box[0], box[-1]) in (("(", ")"), ("{", "}")):
        box = box[1:-1].strip()
    sign, box = (-1, box[1:]) if box[:1] == "-" else (1, box.removeprefix("+"))
    if re.fullmatch(r"[1-9]\d{0,2}((,|\{,\})\d{3})+(\.\d*)?", box, re.ASCII):
        box = re.sub(r"[,{}]", "", box)
    if re.fullmatch(r"\d+/-?\d+", box, re.ASCII) and int(box.split("/")[1]):
        return sign * Fraction(int(box.split("/")[0]), int(box.split("/")[1]))
    if re.fullmatch(r"\d+\.?\d*|\.\d+", box, re.ASCII):
        return sign * Fraction(box.rstrip("."))
    return None


@given(PLAIN, st.integers(-30, 30))
def test_a_random_box_is_accepted_only_if_it_is_the_number(box: str, truth: int) -> None:
    if accepted(box, str(truth)):
        assert value_of(box) == truth, box


@given(st.integers(0, 99), PLAIN, PLAIN)
def test_what_stands_around_a_number_does_not_go_unnoticed(truth: int, before: str, behind: str) -> None:
    box = f"{before}{truth}{behind}"
    number = read_number(clean(box))
    if accepted(box, str(truth)) and not (number and number.unit):
        assert value_of(box) == truth, box


# ---------------------------------------------------------------- expressions

LEAVES = st.sampled_from(
    [("x", sympy.Symbol("x")), ("y", sympy.Symbol("y")), ("\\sqrt{2}", sympy.sqrt(2)), ("\\pi", sympy.pi)]
)
NUMBERS = st.integers(1, 9).map(lambda n: (str(n), sympy.Integer(n)))


def _grown(inner: st.SearchStrategy) -> st.SearchStrategy:  # type: ignore[type-arg]
    two = st.tuples(inner, inner)
    return st.one_of(
        two.map(lambda p: (f"{p[0][0]}+{p[1][0]}", p[0][1] + p[1][1])),
        two.map(lambda p: (f"({p[0][0]})({p[1][0]})", p[0][1] * p[1][1])),
        two.map(lambda p: (f"{p[0][0]}-({p[1][0]})", p[0][1] - p[1][1])),
        two.map(lambda p: (f"\\frac{{{p[0][0]}}}{{{p[1][0]}}}", p[0][1] / p[1][1])),
        inner.map(lambda p: (f"({p[0]})^{{2}}", p[1] ** 2)),
    )


EXPRESSIONS = st.recursive(LEAVES | NUMBERS, _grown, max_leaves=4)
POINTS = [
    {"x": sympy.Rational(3, 7), "y": sympy.Rational(11, 5)},
    {"x": sympy.Rational(5, 2), "y": sympy.Rational(1, 9)},
]


@given(EXPRESSIONS, EXPRESSIONS)
def test_made_latex_is_accepted_only_if_its_values_agree(left, right) -> None:  # type: ignore[no-untyped-def]
    assume(not left[1].has(sympy.zoo, sympy.nan) and not right[1].has(sympy.zoo, sympy.nan))
    if accepted(left[0], right[0]):
        for point in POINTS:
            difference = (left[1] - right[1]).subs(point).evalf(50)
            assert abs(difference) < sympy.Float("1e-40"), (left[0], right[0])


@given(EXPRESSIONS, st.integers(-3, 3), st.integers(20, 60))
def test_a_near_expression_is_refused(made, sign: int, digits: int) -> None:  # type: ignore[no-untyped-def]
    assume(sign and not made[1].has(sympy.zoo, sympy.nan))
    assert not accepted(f"{made[0]}{sign:+}\\cdot 10^{{-{digits}}}", made[0])


@given(st.text("0123456789+-()x{}^/ \\sqrt", max_size=9), st.sampled_from(["2\\sqrt{3}", "x^2+1", "x/2", "\\sqrt{2}"]))
def test_a_random_expression_is_accepted_only_if_its_values_agree(box: str, truth: str) -> None:
    assume(not re.search(r"\^[^x]{0,3}\d{4}", box))
    if accepted(box, truth):
        parsed, expected = (sympy.sympify(grader_symbolic.parse(clean(side))) for side in (box, truth))
        assert all(abs((parsed - expected).subs(point).evalf(50)) < sympy.Float("1e-40") for point in POINTS)
