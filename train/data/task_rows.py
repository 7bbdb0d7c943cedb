"""Rows of a source as tasks: selected by their fields, with a whole number as answer.

    "\\boxed{1{,}000}", "42.0", "84/2", "x = 42", "42 cm", "4.2e1"  ──read_integer──>  1000, 42, 42, ...

A number is read and never computed: `2^{10}`, `6!` and `\\sqrt{16}` are not whole numbers here, as the judge
does not accept such a prediction either. The only power is that of ten in scientific notation. A unit is
dropped, because a judge compares units only if truth and prediction both have one; a percentage is not a
whole number.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from rocstar.train.data.build_config import MAX_DIGITS, CleanConfig, SourceConfig
from rocstar.train.data.problem_kinds import kind_of
from rocstar.train.data.row_table import Candidate, Dropped, clipped, earlier, licence_of, rejection_reason, row_name
from rocstar.train.data.words import conversation_key
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks import forms, latex
from rocstar.train.tasks.data import answer_text, field_of, id_of_task, question_of
from rocstar.train.tasks.messages import short_repr
from rocstar.train.tasks.numbers import read_number, read_scientific

MAX_CHARACTERS: Final = 2000
"""A longer answer is not parsed: it is not a plausible number."""

_EXPONENT = re.compile(r"(?P<mantissa>[+-]?[0-9]+(?:\.[0-9]+)?)[eE][+]?(?P<power>[0-9]{1,18})")
_POWER_OF_TEN = re.compile(
    r"[+-]?[0-9]+(?:\.[0-9]+)?\s*(?:\\times|\\cdot|×)\s*10\^(?:\{\s*(?P<power>[0-9]+)\s*\}|(?P<power1>[0-9]))"
)


def read_task(row: Any, source: SourceConfig, clean: CleanConfig, *, commercial: bool = False) -> Candidate | Dropped:
    """Return a row as a task, or the reason to drop it."""
    name = row_name(row)
    if not isinstance(row, Mapping):
        return Dropped(row=name, reason="unreadable", evidence={"error": f"no object: {short_repr(row)}"})
    try:
        question, context = question_of(field_of(row, source.question, "the row"), source.question, "the row")
        answer = answer_text(field_of(row, source.answer, "the row"), source.answer, "the row")
    except ConfigError as error:
        return Dropped(row=name, reason="unreadable", evidence={"error": clipped(str(error))})
    said = clipped(question)
    if reason := rejection_reason(row, source, commercial=commercial):
        return Dropped(row=name, reason=reason[0], evidence=reason[1], shown=said)
    decisions = earlier(row)
    if clean.answers == "integer":
        value = read_integer(answer, max_digits=clean.max_digits)
        if isinstance(value, str):
            return Dropped(row=name, reason=value, evidence={"answer": clipped(answer)}, shown=said)
        if str(value) != answer:
            decisions["answer_as_written"] = clipped(answer)
        answer = str(value)
    found = kind_of(question, among=clean.drop)
    if found is not None:
        return Dropped(row=name, reason=found[0], evidence={"phrase": found[1]}, shown=said)
    messages = [*context, {"role": "user", "content": question}]
    return Candidate(
        row=name,
        id=id_of_task(question, answer, context),
        key=conversation_key(messages),
        label=answer,
        problem=question,
        body={"question": messages if context else question, "answer": answer},
        licence=licence_of(row, source),
        decisions=decisions,
    )


def read_integer(answer: str, *, max_digits: int = MAX_DIGITS) -> int | Literal["no_integer", "huge_integer"]:
    """Return the value of an answer, or the reason to drop it."""
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
    form = forms.read_form(text, is_truth=True)
    if form.kind is not forms.Kind.leaf:
        return "no_integer"
    number = read_number(form.text) or read_scientific(form.text)
    if number is None or number.base is not None or number.percent or number.value.denominator != 1:
        return "no_integer"
    value = number.value.numerator
    return "huge_integer" if abs(value) >= 10**max_digits else value


def _bare(answer: str) -> str:
    """Return the answer without a solution before it, and without a box, dollars or `\\text{}` around it."""
    _, marker, tail = answer.rpartition("####")
    text = tail if marker else answer
    if "\\boxed" in text or "\\fbox" in text:
        text = latex.last_boxed(text) or ""
    text = latex.clean(text)
    while found := re.fullmatch(r"\\text\{([^{}]*)\}", text):
        text = latex.clean(found[1])
    return text
