"""The program that compares expressions by computer algebra. Runs in the sandbox; never imported by a run.

    line 1: JSON list of truths ──> parsed and compared with themselves ──> the word that they were read
    line 2: JSON list of [prediction, index of its truth] ──> 1, 0 or L for each
    line 3: a nonce ──> "NONCE bits" as the last line of the output

Who waits: the judge, for the last line. If the program ends after the first word without it, the prediction
did that. The nonce is read after grading, so nothing that is graded can have seen it.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, latex2sympy
from latex2sympy2_extended.logic import And
from sympy.core.relational import Relational
from sympy.core.traversal import bottom_up

READ = "truths read"
_POINTS = (sympy.Rational(7, 5), sympy.Rational(13, 11), sympy.Rational(29, 17))
_DIGITS = 30
# Compared as they stand: the parser takes F_k for a symbol without k, so that a sum over k would be wrong.
_BOUND = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)
_NORMAL = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none")
# Unlike the library's default, which has `B` for `b`.
_CONVERSION = ConversionConfig(lowercase_symbols=False)


def parse(text: str) -> Any:
    """The sympy object that a LaTeX text writes, with decimals as exact fractions; None if it writes none."""
    try:
        found = latex2sympy(text, is_real=True, normalization_config=_NORMAL, conversion_config=_CONVERSION)
    except (RecursionError, MemoryError):
        raise
    except Exception:  # the parser raises whatever it meets
        return None
    if isinstance(found, And):
        return [_exact(part) for part in found._unsorted_args]
    return _exact(found) if isinstance(found, sympy.Basic | sympy.MatrixBase) else None


def _exact(found: Any) -> Any:
    """Evaluate what is still unevaluated, with each decimal as the fraction that it writes."""
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
    """Whether two parsed answers are exactly equal: expressions, relations, or sets of real numbers."""
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
        if i is not None and _is_complex(truth, i):
            difference = difference.subs(i, sympy.I)
        return is_zero(difference)
    return False


def _is_complex(truth: Any, i: Any) -> bool:
    """Whether `i` is the imaginary unit, no variable: in a + bi of constants, and in a power of e."""
    if any(power.args[0].has(i) for power in truth.atoms(sympy.exp)):
        return True
    return bool(truth.free_symbols == {i} and not truth.diff(i).has(i))


def is_zero(difference: Any) -> bool:
    """Whether an expression is proven to be 0. Numbers only refute: a small one is not 0."""
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
        # A precision of 1 says that not a single digit is known: it may be 0.
        if value.is_number and not value.has(sympy.nan, sympy.zoo) and _is_known(value):
            return True
    return False


def _is_known(value: Any) -> bool:
    return any(part.is_Float and part != 0 and part._prec > 1 for part in value.as_real_imag())


def _relations_equal(prediction: Any, truth: Any) -> bool:
    """Equal up to a factor: 2x = 4 is x = 2; the factor of an inequality is positive, or turns it around."""
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
    """1 < x < 2, also from the other end, or as the set that it is."""
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
    """The set of real numbers that a side is. None if it is none, or was to be solved and is not linear."""
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
    """1 or 0; L where the prediction was too much for the interpreter."""
    try:
        return str(int(equal(parse(prediction), truth)))
    except (RecursionError, MemoryError):
        return "L"
    except Exception:  # sympy raises whatever it meets: nothing was proven
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
