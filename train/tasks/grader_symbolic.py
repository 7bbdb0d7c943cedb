"""The program that compares expressions by computer algebra. Runs in the sandbox; never imported by a run.

    line 1: JSON list of truths ──> parsed and compared with themselves ──> the word that they were read
    line 2: JSON list of [prediction, index of its truth] ──> 1, 0 or L for each
    line 3: a nonce ──> "NONCE bits" as the last line of the output

The judge waits for the last line. If the program ends after the first word without it, the prediction is the
cause. The nonce is read after grading, so graded text cannot know it.
"""

import json
import logging
import re
import sys
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, _Latex2Sympy
from latex2sympy2_extended.logic import And
from latex2sympy2_extended.math_normalization import normalize_latex
from sympy.core.relational import Relational
from sympy.core.traversal import bottom_up

READ = "truths read"
_POINTS = (sympy.Rational(7, 5), sympy.Rational(13, 11), sympy.Rational(29, 17))
_DIGITS = 30
# Compared unevaluated: the parser reads F_k as a symbol without k, so a sum over k would be wrong.
_BOUND = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)
_NORMAL = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none")
# The library's default reads `B` as `b`.
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_DIGITS_ALONE = re.compile(r"[0-9.,]+")
_FRACTION_ALONE = re.compile(r"\\frac\{[0-9]+\}\{[0-9]+\}")


class _Converter(_Latex2Sympy):  # type: ignore[misc]
    """The library's converter, except that factors side by side are multiplied.

    The library adds a whole number and a rational number behind it, `(2)(3)` as well as `2\\frac{1}{2}`.
    """

    def convert_postfix(self, postfix: Any) -> Any:
        """Convert a factor. ValueError: digits behind digits, `1 2`, are neither a product nor one number."""
        found = super().convert_postfix(postfix)
        factors = postfix.parentCtx.children
        this, *behind = (one.getText() for one in factors[factors.index(postfix) :][:2])
        if behind and _DIGITS_ALONE.fullmatch(this):
            if _DIGITS_ALONE.fullmatch(behind[0]):
                raise ValueError("digits behind digits")
            if _FRACTION_ALONE.fullmatch(behind[0]):
                return found
        return sympy.Pow(found, 1, evaluate=False) if behind and isinstance(found, sympy.Integer) else found


def parse(text: str) -> Any:
    """Return the sympy object of a LaTeX text, with decimals as exact fractions; None if it is unreadable."""
    try:
        found = _Converter(is_real=True, config=_CONVERSION).parse(normalize_latex(text, _NORMAL))
    except (RecursionError, MemoryError):
        raise
    except Exception:  # the parser may raise anything
        return None
    if isinstance(found, And):
        return [_exact(part) for part in found._unsorted_args]
    return _exact(found) if isinstance(found, sympy.Basic | sympy.MatrixBase) else None


def _exact(found: Any) -> Any:
    """Evaluate the object, with each decimal as its exact fraction."""
    if not isinstance(found, sympy.Basic):
        return found
    floats = {value: sympy.Rational(str(value)) for value in found.atoms(sympy.Float)}
    found = found.xreplace(floats)
    if isinstance(found, sympy.Set):
        return found
    if found.has(*_BOUND):
        return bottom_up(found, lambda part: part.func(*part.args) if part.args else part)
    return found.doit()


def equal(prediction: Any, truth: Any) -> bool:
    """Compare two parsed answers exactly: expressions, relations, or sets of real numbers."""
    if prediction is None or truth is None:
        return False
    if isinstance(prediction, list) or isinstance(truth, list):
        return _chains_equal(prediction, truth)
    if isinstance(prediction, Relational) and isinstance(truth, Relational):
        return _relations_equal(prediction, truth)
    if isinstance(prediction, sympy.Set | Relational) and isinstance(truth, sympy.Set | Relational):
        return _sets_equal(prediction, truth)
    if isinstance(prediction, sympy.Expr) and isinstance(truth, sympy.Expr):
        difference = prediction - truth
        i = next((symbol for symbol in truth.free_symbols if symbol.name == "i"), None)
        if i is not None:
            # `i` is the imaginary unit in a + bi with constants, and in a power of e; else it is a variable.
            in_power = any(power.args[0].has(i) for power in truth.atoms(sympy.exp))
            if in_power or (truth.free_symbols == {i} and not truth.diff(i).has(i)):
                difference = difference.subs(i, sympy.I)
        return is_zero(difference)
    return False


def is_zero(difference: Any) -> bool:
    """True if an expression is proven to be 0. Numerical values only refute: a small value is not 0."""
    if difference.is_Rational or difference.has(*_BOUND):
        return bool(difference == 0)
    if difference.has(sympy.nan, sympy.zoo):
        return False
    if _is_refuted(difference):
        return False
    return bool(sympy.simplify(difference) == 0) or difference.equals(0) is True


def _is_refuted(difference: Any) -> bool:
    symbols = sorted(difference.free_symbols, key=str)
    for shift in range(len(_POINTS) if symbols else 1):
        point = {s: _POINTS[(i + shift) % len(_POINTS)] + i for i, s in enumerate(symbols)}
        try:
            value = difference.subs(point).evalf(_DIGITS)
        except (TypeError, ValueError, ZeroDivisionError):
            continue
        # A precision of 1 means that no digit is known: the value may be 0.
        if value.is_number and not value.has(sympy.nan, sympy.zoo) and _is_known(value):
            return True
    return False


def _is_known(value: Any) -> bool:
    return any(part.is_Float and part != 0 and part._prec > 1 for part in value.as_real_imag())


def _relations_equal(prediction: Any, truth: Any) -> bool:
    """Compare up to a factor: 2x = 4 is x = 2; a negative factor turns an inequality around."""
    kinds = {sympy.Gt: 1, sympy.Ge: 1, sympy.Lt: -1, sympy.Le: -1, sympy.Eq: 0, sympy.Ne: 0}
    strict = {sympy.Gt: 2, sympy.Lt: 2, sympy.Ge: 1, sympy.Le: 1, sympy.Eq: 0, sympy.Ne: 3}
    if strict[type(prediction)] != strict[type(truth)]:
        return False
    left, right = prediction.lhs - prediction.rhs, truth.lhs - truth.rhs
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    point = {s: _POINTS[i % len(_POINTS)] + i for i, s in enumerate(symbols)}
    here, there = left.subs(point), right.subs(point)
    if is_zero(there) or is_zero(here):
        return is_zero(left) and is_zero(right)
    factor = sympy.simplify(here / there)
    turned = kinds[type(prediction)] * kinds[type(truth)]
    if turned and (factor.is_positive if turned < 0 else factor.is_negative):
        return False
    return is_zero(left - factor * right)


def _chains_equal(prediction: Any, truth: Any) -> bool:
    """Compare 1 < x < 2 in both directions, or as a set."""
    if isinstance(prediction, list) and isinstance(truth, list) and len(prediction) == len(truth):
        for turned in (prediction, prediction[::-1]):
            pairs = zip(turned, truth, strict=True)
            if all(_relations_equal(a, b) for a, b in pairs if isinstance(a, Relational)):
                return all(isinstance(a, Relational) for a in prediction)
    if any(isinstance(side, sympy.Set | Relational | list) is False for side in (prediction, truth)):
        return False
    return _sets_equal(prediction, truth)


def _sets_equal(prediction: Any, truth: Any) -> bool:
    sides = [_as_set(prediction, is_solved=True), _as_set(truth)]
    if None in sides:
        return False
    return bool(sides[0] == sides[1] or sides[0].symmetric_difference(sides[1]).is_empty)


def _as_set(side: Any, *, is_solved: bool = False) -> Any:
    """Return the set of real numbers of a side; None if it has none, or must be solved and is not linear."""
    if isinstance(side, sympy.Set):
        return side
    relations = side if isinstance(side, list) else [side]
    symbols = set().union(*(relation.free_symbols for relation in relations))
    if len(symbols) != 1:
        return None
    if is_solved and any((part.lhs - part.rhs).diff(*symbols).free_symbols for part in relations):
        return None
    return sympy.Intersection(*(relation.as_set() for relation in relations))


def verdict_of(prediction: str, truth: Any) -> str:
    """Return 1 or 0; L if the prediction exceeded the interpreter's limits."""
    try:
        return str(int(equal(parse(prediction), truth)))
    except (RecursionError, MemoryError):
        return "L"
    except Exception:  # sympy may raise anything: nothing was proven
        return "0"


def main() -> None:
    """Grade one job."""
    logging.disable()
    sys.set_int_max_str_digits(0)
    truths = []
    for text in json.loads(sys.stdin.readline()):
        truth = parse(text)
        verdict_of(text, truth)
        truths.append(truth)
    print(READ, flush=True)
    bits = [verdict_of(prediction, truths[index]) for prediction, index in json.loads(sys.stdin.readline())]
    print(f"\n{sys.stdin.readline().strip()} {''.join(bits)}")


if __name__ == "__main__":
    main()
