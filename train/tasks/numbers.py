"""Number literals: the only answers that equal a truth which is a plain number. Pure, exact.

    literal = [currency] [sign] (integer | decimal | integer/integer | \\frac{}{} | mixed | base) [%] [unit]

A literal is read and never computed: no operator but the bar of a fraction of integers. Its value is a
`Fraction`, whatever its length. Digits are ASCII: other scripts' digits are no literal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from rocstar.train.tasks.latex import unparenthesised
from rocstar.train.tasks.units import DEGREES, prefix_unit, read_unit

ROUNDED_PLACES = 6
"""A truth of this many decimal places or more is rounded: a number that rounds to it is equal."""
_DIGITS_AT_ONCE = 4000
"""Below the length at which Python refuses to convert."""
_MAX_EXPONENT = 400

_SIGN = r"(?P<sign>[+-]?)\s*"
_INTEGER = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9])|[0-9]+"
_DECIMAL = re.compile(rf"{_SIGN}(?P<whole>{_INTEGER})?(?P<places>\.[0-9]*)?(?P<rest>.*)", re.DOTALL)
_DECIMAL_COMMA = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]+),(?P<places>[0-9]+)")
_FRACTION = re.compile(
    rf"{_SIGN}(?P<whole>[0-9]+)?\s*\\frac\s*"
    r"(?:\{\s*(?P<top>[+-]?(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+))\s*\}|(?P<top1>[0-9]))\s*"
    r"(?:\{\s*(?P<bottom>[+-]?[0-9]+)\s*\}|(?P<bottom1>[0-9]))(?P<rest>.*)",
    re.DOTALL,
)
_SLASH = re.compile(rf"{_SIGN}(?P<top>[0-9]+)\s*/\s*(?P<bottom>[+-]?[0-9]+)(?![0-9.,/^!_])(?P<rest>.*)", re.DOTALL)
_MIXED = re.compile(
    rf"{_SIGN}(?P<whole>{_INTEGER}) +(?P<top>0|[1-9][0-9]*)\s*/\s*"
    r"(?P<bottom>[0-9]+)(?![0-9.,/^!_])(?P<rest>.*)",
    re.DOTALL,
)
_BRACKETED = re.compile(
    r"(?P<sign>[+-]?)\s*(?:[{(]\s*(?P<top>[+-]?[0-9]+)\s*[)}]|(?P<top1>[0-9]+))\s*/\s*"
    r"(?:[{(]\s*(?P<bottom>[0-9]+)\s*[)}]|(?P<bottom1>[0-9]+))(?P<rest>)"
)
_FRACTIONS = (_FRACTION, _MIXED, _BRACKETED, _SLASH)
_BASE = re.compile(
    rf"{_SIGN}(?P<open>\()?(?P<digits>[0-9A-Z]+)(?(open)\))_(?:\{{\s*(?:\\text\{{)?\s*(?P<base>[0-9a-z]+)[\s}}]*|(?P<base1>[0-9]))"
)
_SCIENTIFIC = re.compile(
    r"(?:(?P<mantissa>[+-]?[0-9]+(?:\.[0-9]+)?)\s*(?:\\times|\\cdot|\*)\s*|(?P<sign>[+-]?))"
    r"10\^(?:\{\s*(?P<power>[+-]?[0-9]+)\s*\}|(?P<power1>[0-9]))"
)
_BASES = {
    name: str(i) for i, name in enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], 2)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainNumber:
    """A written number and its notation.

    Invariant: `value` is exactly the value of the digits. `places` counts the digits after a decimal point
    (None without one). A number of base 10 has `base` None; another's value is that of its digits as text,
    never converted.
    """

    value: Fraction
    places: int | None = None
    percent: bool = False
    unit: str | None = None
    base: str | None = None


def read_number(text: str) -> PlainNumber | None:
    """Read a clean text that is one literal; None if it is anything else."""
    text = unparenthesised(text)
    if text[:2] in ("-(", "+("):
        inner = unparenthesised(text[1:])
        number = read_number(inner) if inner != text[1:] and inner[:1] not in "+-" else None
        if number is None or text[0] == "+":
            return number
        return None if number.base is not None else replace(number, value=-number.value)
    if "_" in text and (found := _BASE.fullmatch(text)):
        base = found["base"] or found["base1"]
        digits = f"{found['sign'].strip('+')}{found['digits'].lstrip('0')}"
        return PlainNumber(value=Fraction(0), base=f"{digits}_{_BASES.get(base, base)}")
    prefix, text = prefix_unit(text)
    found, places = None, None
    if "/" in text or "\\frac" in text:
        found = next(filter(None, (pattern.fullmatch(text) for pattern in _FRACTIONS)), None)
    if found:
        value = _fraction(found)
    else:
        found = _DECIMAL.fullmatch(text)
        value = None
        if found and (found["whole"] or (found["places"] or "")[1:]):
            places = len(found["places"]) - 1 if found["places"] else None
            digits = re.sub("[,. ]", "", f"{found['whole'] or ''}{found['places'] or ''}")
            value = Fraction(_integer(digits), 10 ** (places or 0))
            value = -value if found["sign"] == "-" else value
    beside = None if value is None or found is None else _beside(found["rest"], prefix)
    if value is None or beside is None:
        return None
    percent, unit = beside
    return PlainNumber(value=value, places=places, percent=percent, unit=unit)


def read_scientific(text: str, *, is_bare: bool = False) -> PlainNumber | None:
    """Read `3.2 \\times 10^{5}`, with `is_bare` also `10^{5}`: a power, which only a truth with one takes."""
    found = _SCIENTIFIC.fullmatch(unparenthesised(text))
    if not found or not (is_bare or found["mantissa"]):
        return None
    power = found["power"] or found["power1"]
    if len(power) > 4 or abs(int(power)) > _MAX_EXPONENT:
        return None
    return PlainNumber(value=Fraction(found["mantissa"] or f"{found['sign']}1") * Fraction(10) ** int(power))


def has_exponent(number: PlainNumber) -> bool:
    """True if programs print the number with an exponent: below 1e-4 and from 1e16 on."""
    return number.base is None and (0 < abs(number.value) < Fraction(1, 10**4) or abs(number.value) >= 10**16)


def read_decimal_comma(text: str) -> PlainNumber | None:
    """Read `3,14` as a decimal. A group of three digits is one of thousands, a single one a list's."""
    found = _DECIMAL_COMMA.fullmatch(text)
    if not found or len(found["places"]) < 2:
        return None
    thousands = len(found["places"]) == 3 and len(found["whole"]) <= 3 and found["whole"].lstrip("0")
    if thousands:
        return None
    digits = f"{found['sign']}{found['whole']}.{found['places']}"
    return PlainNumber(value=Fraction(digits), places=len(found["places"]))


def numbers_equal(prediction: PlainNumber, truth: PlainNumber) -> bool:
    """Compare a literal with the truth: equal value, percent and base, and no different unit.

    Exact, except that a truth with `ROUNDED_PLACES` decimal places or more also equals a more precise number.
    """
    if prediction.base != truth.base or prediction.percent != truth.percent:
        return False
    if None not in (prediction.unit, truth.unit) and prediction.unit != truth.unit:
        return False
    if prediction.value == truth.value:
        return True
    if truth.places is None or truth.places < ROUNDED_PLACES:
        return False
    if abs(truth.value) * 10**truth.places < 10 ** (ROUNDED_PLACES - 1):
        return False  # few digits after zeros may be exact
    if prediction.places is not None and prediction.places < truth.places:
        return False
    return abs(prediction.value - truth.value) <= Fraction(1, 2 * 10**truth.places)


def _fraction(found: re.Match[str]) -> Fraction | None:
    named = found.groupdict()
    top, bottom = (named[part] or named.get(f"{part}1", "") for part in ("top", "bottom"))
    divisor = _integer(bottom)
    if not divisor:
        return None
    value = Fraction(_integer(top.replace(",", "")), divisor)
    if (whole := named.get("whole")) is not None:  # a mixed number: the sign is that of both
        if "-" in top + bottom or not 0 <= value < 1:
            return None
        value += _integer(re.sub("[, ]", "", whole))
    return -value if named["sign"] == "-" else value


def _integer(digits: str) -> int:
    """Return the value of digits with a sign, of any length: int() refuses more than some thousands."""
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    value = 0
    for start in range(0, len(digits), _DIGITS_AT_ONCE):
        chunk = digits[start : start + _DIGITS_AT_ONCE]
        value = value * 10 ** len(chunk) + int(chunk)
    return sign * value


def _beside(rest: str, prefix: str | None) -> tuple[bool, str | None] | None:
    """Return (percent, unit) of the text after the digits; None if it is neither."""
    rest = rest.rstrip()
    if not rest:
        return False, prefix
    if prefix is not None:
        return (False, prefix) if read_unit(rest) == prefix else None
    if rest.strip() == "^\\circ":
        return False, DEGREES
    unit = read_unit(rest)
    if unit is None:
        return None
    return (True, None) if unit == "%" else (False, unit)
