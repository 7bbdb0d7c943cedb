"""Number literals, the only answers that equal a truth which is a plain number, and their units. Pure, exact.

    literal = [currency] [sign] (integer | decimal | integer/integer | \\frac{}{} | mixed | base) [%] [unit]

A literal is read and never computed: no operator but the bar of a fraction of integers. Its value is a
`Fraction`, whatever its length. Digits are ASCII: other scripts' digits are no literal.
"""

import re
import tomllib
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

from rocstar.train.tasks.latex import unparenthesised

DEGREES: Final = "degree"
_NAMES: Final = tomllib.loads(Path(__file__).with_name("units.toml").read_text(encoding="utf-8"))
_UNITS: Final = {spelling: name for name, all_ in _NAMES.items() for spelling in all_.split()}
_PREFIXES: Final = {"\\$": "dollar", "\u20ac": "euro", "\u00a3": "pound sterling", "\u00a2": "cent"}
_NO_UNITS = """
ones tens dozens scores hundreds thousands millions billions trillions halves thirds fourths quarters
fifths sixths sevenths eighths ninths tenths hundredths thousandths percents plus minus times squares
cubes factorials digits radicals roots logs is was has does this as us yes less perhaps versus guess
pass others else besides always sometimes wrongs errors bits its pis primes mods modulus
"""
_MULTIPLIES: Final = frozenset(_NO_UNITS.split())
"""Words that look like a plural and may change or qualify a value."""
_TEXT = re.compile(r"\\text\{([^{}\\]*)\}")
_POWER = re.compile(r"\^(?:\{\s*([23])\s*\}|([23]))")
_WORD = re.compile(r"[A-Za-z\u00a2\u20ac\u00a3%^\\\u00b0]+")
_BEHIND = re.compile(
    r"(?P<value>.*?[^\s^\\_])(?P<unit>%"
    r"|\s*\\text\{[^{}\\]*\}(?:\s*/\s*\\text\{[^{}\\]*\})?(?:\^\{?\s*[23]\s*\}?)?"
    r"|\s[A-Za-z]{2,}(?:[ /][A-Za-z]{2,})*(?:\^\{?[23]\}?)?)",
    re.DOTALL,
)
_DEGREES_BEHIND = re.compile(r"(?P<value>.*[^\s^\\_])(?P<unit>\^\\circ\s*(?:\\text\{[CF]\}|[CF])?)", re.DOTALL)
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|arc)")
_PRODUCTS: Final = frozenset({"mile", "inch", "milligram", "milliliter", "kilogram", "pound"})
"""Units whose short names may be products of letters."""
_AMOUNT_NAMES: Final = """
hundred thousand million billion trillion dozen score half quarter third double triple pair couple few several
not no non less more fewer wrong minus plus times extra other over under at of to from than and or if when
unless with without except but only just about nearly almost maybe perhaps one two three four five six seven
eight nine ten
"""
_AMOUNTS: Final = frozenset(_AMOUNT_NAMES.split())
"""Words that, before a noun, change the number or deny it."""
_PLURAL = re.compile(r"(?:[a-z]+ )?[a-z]{3,}s")
MAX_CHARACTERS = 60


def prefix_unit(text: str) -> tuple[str | None, str]:
    """Split a currency sign off the front: (unit, rest)."""
    minus, bare = ("-", text[1:]) if text.startswith("-") else ("", text)
    for sign, unit in _PREFIXES.items():
        if bare.startswith(sign):
            return unit, minus + bare[len(sign) :].lstrip()
    return None, text


def read_unit(text: str) -> str | None:
    """Return the name of the unit in this text after a number; None if there is none.

    A plural noun in `\\text{}` or after a space is its own unit ("apples"). A single letter is a unit only
    there: `42x` differs from 42.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    if text in _PREFIXES or text.strip() in _PREFIXES:
        return _PREFIXES[text.strip()]
    is_separate = text.startswith((" ", "\\text{"))
    bare = _TEXT.sub(r" \1 ", text.replace(".}", "}"))
    bare = bare.replace("^\\circ C", "^\\circC").replace("^\\circ F", "^\\circF")
    if "\\text" in bare or bare.count("^") > 1 + bare.count("^\\circ"):
        return None
    power = ""
    if found := _POWER.search(bare):
        power, bare = found[1] or found[2], bare[: found.start()] + " " + bare[found.end() :]
        if bare[found.start() :].strip():
            return None
    return _named(bare, power, is_separate)


def unit_behind(text: str) -> tuple[str, str | None]:
    """Split an expression into (value, unit); the unit is None if there is none.

    Letters without `\\text{}` are a unit only after a space, and not if they may be a product, as `mi`. A
    degree sign after a function belongs to its argument.
    """
    prefix, bare = prefix_unit(text)
    tail = bare[-MAX_CHARACTERS:]
    found = _BEHIND.fullmatch(tail) or _DEGREES_BEHIND.fullmatch(tail)
    if found is None or (_FUNCTION.search(bare) and "\\circ" in found["unit"]):
        return bare, prefix
    unit = DEGREES if found["unit"] == "^\\circ" else read_unit(found["unit"])
    if unit is None or (unit.strip("^23") in _PRODUCTS and "\\text" not in found["unit"]):
        return bare, prefix
    if prefix is not None and unit != prefix:
        return text, None
    return (bare[:-MAX_CHARACTERS] + found["value"]).rstrip(), unit


def _named(text: str, power: str, is_separate: bool) -> str | None:
    over = re.split(r"/| per ", f" {text.strip()} ")
    if len(over) > 2 or (len(over) == 2 and power):
        return None
    names = []
    for part in over:
        words = part.split()
        for word, exponent in (("square", "2"), ("sq", "2"), ("cubic", "3"), ("cu", "3")):
            if len(words) > 1 and words[0] in (word, f"{word}.") and not power:
                words, power = words[1:], exponent
        if len(words) == 2 and is_separate and _is_noun(words[1]) and not _AMOUNTS.intersection(words):
            words = [" ".join(words)]  # "right triangles"
        if len(words) != 1:
            return None
        name = _name_of(words[0], is_separate)
        if name is None:
            return None
        names.append(name)
    named = " per ".join(names)
    named = {"mile per hour": "mph", "kilometer per hour": "km/h", "foot per second": "fps"}.get(named, named)
    return f"{named}^{power}" if power else named


def _name_of(word: str, is_separate: bool) -> str | None:
    if not _WORD.fullmatch(word.replace(" ", "")):
        return None
    if len(word) == 1 and word.isalpha() and not is_separate:
        return None
    for spelling in (word, word.removesuffix("s"), word.lower(), word.lower().removesuffix("s")):
        if spelling in _UNITS and (len(spelling) > 1 or spelling == word):
            return _UNITS[spelling]
    return word if is_separate and _is_noun(word) else None


def _is_noun(word: str) -> bool:
    return bool(_PLURAL.fullmatch(word)) and word not in _MULTIPLIES


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
