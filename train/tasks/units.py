"""Units of measure after a number, each under one name. Pure, stdlib only.

A unit can only reject an answer: if truth and prediction both have one, they must be equal. Nothing is
converted.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

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
