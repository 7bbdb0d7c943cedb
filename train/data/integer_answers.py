"""Answers that are whole numbers, in whatever way they are written. Pure, exact.

    "\\boxed{1{,}000}", "42.0", "84/2", "x = 42", "42 cm", "4.2e1"  ──read_integer──>  1000, 42, 42, ...

A number is read and never computed: `2^{10}`, `6!` and `\\sqrt{16}` are no whole numbers here, as the judge
takes no such prediction either. The only power is that of ten in scientific notation. A unit is left out,
for a judge compares units only where truth and prediction both have one; a percentage is no whole number.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from rocstar.train.tasks import forms
from rocstar.train.tasks.latex import clean, last_boxed
from rocstar.train.tasks.numbers import read_number, read_scientific

MAX_DIGITS: Final = 30
"""Digits of a number that is not huge. The longest label of DAPO-Math-17k has 23; the report's example of a
huge one, 6.5e27330467, has 27 million."""
MAX_CHARACTERS: Final = 2000
"""A longer answer is not read further: it is not a plausible number."""
Refusal = Literal["no_integer", "huge_integer"]

_EXPONENT = re.compile(r"(?P<mantissa>[+-]?[0-9]+(?:\.[0-9]+)?)[eE][+]?(?P<power>[0-9]{1,18})")
_POWER_OF_TEN = re.compile(
    r"[+-]?[0-9]+(?:\.[0-9]+)?\s*(?:\\times|\\cdot|×)\s*10\^(?:\{\s*(?P<power>[0-9]+)\s*\}|(?P<power1>[0-9]))"
)


def read_integer(answer: str, *, max_digits: int = MAX_DIGITS) -> int | Refusal:
    """The whole number that an answer is, or why it is none that can be kept."""
    if len(answer) > MAX_CHARACTERS:
        digits = sum(character.isdecimal() for character in answer)
        return "huge_integer" if digits > len(answer) // 2 else "no_integer"
    text = _bare(answer)
    if found := _EXPONENT.fullmatch(text) or _POWER_OF_TEN.fullmatch(text):
        named = found.groupdict()
        power = int(named["power"] or named.get("power1") or 0)
        if power > max_digits:
            return "huge_integer"
        if found.re is _EXPONENT:
            text = f"{found['mantissa']} \\times 10^{{{power}}}"
    form = forms.read_truth(text)
    if form.kind is not forms.Kind.leaf:
        return "no_integer"
    number = read_number(form.text) or read_scientific(form.text)
    if number is None or number.base is not None or number.percent or number.value.denominator != 1:
        return "no_integer"
    value = number.value.numerator
    return "huge_integer" if abs(value) >= 10**max_digits else value


def _bare(answer: str) -> str:
    """The answer without a solution before it, a box, dollars or `\\text{}` around it."""
    _, marker, tail = answer.rpartition("####")
    text = tail if marker else answer
    if "\\boxed" in text or "\\fbox" in text:
        text = last_boxed(text) or ""
    text = clean(text)
    while found := re.fullmatch(r"\\text\{([^{}]*)\}", text):
        text = clean(found[1])
    return text
