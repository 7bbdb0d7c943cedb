"""A prediction uses no operator that its truth lacks, and no letter."""

import pytest

from rocstar.train.tasks.latex import bracket_depths, is_closed
from rocstar.train.tasks.operators import exponent_depth, forbidden_operator


@pytest.mark.parametrize(
    ("prediction", "truth", "refused"),
    [
        ("\\sum_{k=1}^{n} k", "\\frac{n(n+1)}{2}", "\\sum"),
        ("\\arctan(1)", "\\frac{\\pi}{4}", "\\arctan"),
        ("x\\sin(1)", "x", "\\sin"),
        ("\\binom{n}{2}", "n!", "\\binom"),
        ("\\cos(1)", "\\sin(2)", "\\cos"),
        ("\\operatorname{foo}(x)", "x", "\\operatorname"),
        ("x+y", "x", "y"),
        ("5!", "n", "!"),
        ("|x|", "x", "|"),
        ("2^{2^{3}}", "2^{8}", "^"),
        ("\u0662x", "2x", "\u0662"),
        ("(x", "x", "a bracket"),
        ("x)(", "x", "a bracket"),
        ("\\frac{}{}", "x", "nothing"),
        ("\\cos^2(x)", "1-\\sin^2(x)", None),
        ("\\sum_{j=1}^{n} j", "\\sum_{j=1}^{n} j", None),
        ("[0,1)", "0\\leq x<1", None),
        ("\\frac{\\sqrt{2}}{2}\\cdot\\pi", "\\frac{\\pi}{x}", None),
        ("x^{2^{3}}", "x^{2^{2}}", None),
    ],
)
def test_what_a_prediction_must_not_use(prediction: str, truth: str, refused: str | None) -> None:
    assert forbidden_operator(prediction, truth) == refused


@pytest.mark.parametrize(
    ("text", "deep", "high", "closed"),
    [
        ("x", 0, 0, True),
        ("(x)^{2}", 1, 1, True),
        ("2^{3^{4}}", 2, 2, True),
        ("2^3^4", 0, 2, True),
        ("[(", 2, 0, False),
    ],
)
def test_brackets_and_exponents_are_counted(text: str, deep: int, high: int, closed: bool) -> None:
    assert (max(bracket_depths(text)), exponent_depth(text), is_closed(text)) == (deep, high, closed)
