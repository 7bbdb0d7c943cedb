"""Answers that are made of parts: lists, tuples, sets, intervals, unions, matrices. Pure.

    "x = 1, x = 2" ──read──> list of two named leaves ──equal──> leaf by leaf, by a comparison from outside

A list is a collection without order, and counts how often a part occurs; a set does not count; a tuple and
an interval have an order, and their brackets belong to them. So (2, 1) is no {1, 2}, and 1, 1, 2 no 1, 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rocstar.train.tasks.latex import closing_brace, enclosed, split, unparenthesised
from rocstar.train.tasks.numbers import read_decimal_comma, read_number
from rocstar.train.tasks.words import is_words

MAX_DEPTH = 6
MAX_PARTS = 64
_SEMICOLON = re.compile(r";")
_COMMA = re.compile(r",")
_AND = re.compile(
    r",?\s*(?:\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}|\\(?:and|or|land|lor|vee|wedge)(?![A-Za-z])|(?<![A-Za-z\\{])(?:and|or)(?![a-z}]))\s*"
)
_CUP = re.compile(r"\\cup(?![A-Za-z])")
_EQUALS = re.compile(r"(?<![<>!])=(?!=)")
_APPROX = re.compile(r"\\approx(?![A-Za-z])")
_IN = re.compile(r"\\in(?![A-Za-z])")
_RELATION = re.compile(r"[<>]|\\(?:geq|leq|neq)(?![A-Za-z])")
_ROW = re.compile(r"\\\\")
_CELL = re.compile(r"&")
_MATRIX = re.compile(r"\\begin\{([pb]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_EITHER = re.compile(r"\\pm(?![A-Za-z])|\u00b1")
_EITHER_DOWN = re.compile(r"\\mp(?![A-Za-z])")
_SCRIPT = re.compile(r"_(?:\{[^{}]*\}|[0-9A-Za-z])")
_ARGUMENT = re.compile(r"\([^()]*\)")
_LABEL = re.compile(r"[A-Za-z\\' :|,/(){}]+")


class Kind(StrEnum):
    """How parts belong together."""

    leaf = "leaf"
    list = "list"
    """without order, counted"""
    set = "set"
    """without order, not counted"""
    row = "row"
    """in order, within its brackets"""
    union = "union"
    no_answer = "no_answer"
    """equal to nothing: a chain of different values, too deep, too many"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """An answer and its parts. `text` is the whole of it, `label` what stands before its equals sign."""

    kind: Kind
    text: str = ""
    brackets: str = ""
    parts: tuple[Form, ...] = ()
    label: str | None = None


NO_ANSWER = Form(kind=Kind.no_answer)
LeavesEqual = Callable[[str, str], bool]
"""(prediction, truth) -> whether two leaves are equal."""


def read_truth(text: str) -> Form:
    """Read a clean truth; of a chain of equations its last member counts."""
    return _read(text, is_truth=True, depth=0)


def read_prediction(text: str) -> Form:
    """Read a clean prediction; a chain of equations must say one thing only."""
    return _read(text, is_truth=False, depth=0)


def _read(text: str, *, is_truth: bool, depth: int) -> Form:
    if depth > MAX_DEPTH:
        return NO_ANSWER
    if read_number(text) or read_decimal_comma(text):
        return Form(kind=Kind.leaf, text=text)

    def read(part: str) -> Form:
        return _read(part, is_truth=is_truth, depth=depth + 1)

    def parts(pieces: Sequence[str]) -> tuple[Form, ...]:
        return tuple(read(piece) for piece in pieces)

    pieces = _pieces(text)
    if len(pieces) > MAX_PARTS:
        return NO_ANSWER
    if len(pieces) > 1:
        made = parts(pieces)
        if _SEMICOLON.search(text):  # "p=5,q=2; p=7,q=2": each is one solution
            made = tuple(_as_row(one) for one in made)
        return Form(kind=Kind.list, text=text, parts=made)
    if is_words(text):
        return Form(kind=Kind.leaf, text=text)
    if _EITHER.search(text) and text.count("\\pm") + text.count("\u00b1") == 1:
        up, down = _EITHER.sub("+", text), _EITHER.sub("-", text)
        return Form(
            kind=Kind.list, parts=(read(_EITHER_DOWN.sub("-", up)), read(_EITHER_DOWN.sub("+", down)))
        )
    label, value = _labelled(text, is_truth=is_truth)
    if value is None:
        return NO_ANSWER
    if label is not None:
        form = read(value)
        return Form(kind=form.kind, text=form.text, brackets=form.brackets, parts=form.parts, label=label)
    return _bracketed(value, read, parts)


def _bracketed(
    text: str, read: Callable[[str], Form], parts: Callable[[Sequence[str]], tuple[Form, ...]]
) -> Form:
    """A union, a matrix, or what stands in brackets; else a leaf."""
    united = split(text, _CUP)
    if len(united) > 1:
        return Form(kind=Kind.union, text=text, parts=parts(united))
    if matrix := _MATRIX.fullmatch(text):
        rows = [split(row, _CELL) for row in _ROW.split(matrix[2].strip().removesuffix("\\\\"))]
        made = tuple(Form(kind=Kind.row, brackets="row", parts=parts(row)) for row in rows)
        return Form(kind=Kind.row, brackets="matrix", parts=made)
    found = enclosed(text)
    if found is None:
        return Form(kind=Kind.leaf, text=text)
    opening, content, closing = found
    pieces = _pieces(content)
    if opening == "\\{":
        return Form(kind=Kind.set, text=text, parts=parts([p for p in pieces if p]))
    if len(pieces) == 1:
        bare = unparenthesised(text)
        return read(bare) if bare != text else Form(kind=Kind.leaf, text=text)
    return Form(kind=Kind.row, text=text, brackets=opening + closing, parts=parts(pieces))


def _pieces(text: str) -> list[str]:
    if is_words(text) and not re.search(r"\b(?:and|or)\b", text):
        return [text]
    for separator in (_SEMICOLON, _AND):
        pieces = split(text, separator)
        if len(pieces) > 1 and all(pieces):
            return [inner for piece in pieces for inner in (_pieces(piece) if separator is _AND else [piece])]
    pieces = [piece for piece in split(text, _COMMA)]
    if pieces and not pieces[-1]:
        pieces.pop()
    return pieces or [""]


def _as_row(form: Form) -> Form:
    if form.kind is not Kind.list:
        return form
    return Form(kind=Kind.row, brackets="()", parts=form.parts)


def _labelled(text: str, *, is_truth: bool) -> tuple[str | None, str | None]:
    """(label, value) of `x = 42`; a value of None is a chain that names more than one thing."""
    if _RELATION.search(text):
        return None, text
    inside = split(text, _IN)
    if len(inside) == 2 and is_label(inside[0]):
        return _label(inside[0]), inside[1]
    about = split(text, _APPROX)
    if len(about) > 2:
        return None, None
    if len(about) == 2:
        if is_label(about[0]):
            return _label(about[0]), about[1]
        value = read_number(split(about[0], _EQUALS)[-1])
        rounded = read_number(about[1])
        if value is None or rounded is None or rounded.places is None:
            return None, None
        if abs(value.value - rounded.value) * 2 * 10**rounded.places > 1:
            return None, None
        text = about[0]
    members = split(text, _EQUALS)
    if len(members) == 1:
        return None, text
    label = _label(members[0]) if is_label(members[0]) else None
    if len(members) == 2:
        if label is not None:
            return label, members[1]
        numbers = [read_number(member) for member in members]
        if all(numbers):
            return None, members[1] if is_truth or numbers[0] == numbers[1] else None
        return None, text
    if is_truth:
        return label, members[-1]
    values = [read_number(member) for member in members[1 if label is not None else 0 :]]
    if (
        any(value is None or value.value != values[-1].value for value in values if values[-1])
        or not values[-1]
    ):
        return None, None
    return label, members[-1]


def is_label(text: str) -> bool:
    """Whether a text names a quantity: letters, an index, a function; no sum and no coefficient."""
    bare = _ARGUMENT.sub("()", _SCRIPT.sub("", text)) if not text.startswith("(") else _SCRIPT.sub("", text)
    if "\\text" in bare and (end := closing_brace(bare, bare.find("{"))) is not None and end == len(bare) - 1:
        return True
    return bool(_LABEL.fullmatch(bare)) and any(c.isalpha() for c in bare)


def _label(text: str) -> str:
    """A label in one spelling: W(n) and W(x) name one function."""
    text = re.sub(r"\(\s*[a-z]\s*\)$", "()", text)
    return re.sub(r"[\s{}]", "", text)


def equal(prediction: Form, truth: Form, leaves_equal: LeavesEqual) -> bool:
    """Whether two answers are equal, part by part. More equal leaves never make them less equal.

    A label that both have must be the same; a list whose parts are all named may be answered by the bare
    values in that order.
    """
    if Kind.no_answer in (prediction.kind, truth.kind):
        return False
    if None not in (prediction.label, truth.label) and prediction.label != truth.label:
        return False

    def same(left: Form, right: Form) -> bool:
        return equal(left, right, leaves_equal)

    kinds = {prediction.kind, truth.kind}
    if kinds == {Kind.leaf}:
        return leaves_equal(prediction.text, truth.text)
    left, right = prediction.parts, truth.parts
    if kinds == {Kind.row}:
        if prediction.brackets != truth.brackets or len(left) != len(right):
            return False
        # All pairs are looked at, so that none stays unknown.
        return all([same(a, b) for a, b in zip(left, right, strict=True)])
    if kinds == {Kind.set}:
        return _cover(left, right, same)
    if kinds in ({Kind.list}, {Kind.union}):
        if kinds == {Kind.list} and _is_named(truth) and not any(part.label for part in left):
            return len(left) == len(right) and all([same(a, b) for a, b in zip(left, right, strict=False)])
        if all(part.kind is Kind.row for part in (*left, *right)):  # points: one named twice is one
            return _cover(left, right, same)
        return _match(left, right, same)
    if kinds == {Kind.list, Kind.set}:
        return _match(left, right, same)
    return (
        kinds <= _OF_NUMBERS
        and _is_range(prediction)
        and _is_range(truth)
        and leaves_equal(prediction.text, truth.text)
    )


_OF_NUMBERS = frozenset({Kind.leaf, Kind.row, Kind.union})


def _is_range(form: Form) -> bool:
    """Whether an answer may be a set of real numbers: a relation, an interval, a union."""
    if form.kind is Kind.row:
        return len(form.parts) == 2 and form.brackets != "matrix"
    return form.kind is Kind.union or bool(_RELATION.search(form.text))


def _is_named(form: Form) -> bool:
    labels = [part.label for part in form.parts]
    return None not in labels and len(set(labels)) == len(labels)


def _cover(left: Sequence[Form], right: Sequence[Form], same: Callable[[Form, Form], bool]) -> bool:
    table = [[same(a, b) for b in right] for a in left]
    return (
        all(any(row) for row in table)
        and all(any(column) for column in zip(*table, strict=True))
        and (bool(left) == bool(right))
    )


def _match(left: Sequence[Form], right: Sequence[Form], same: Callable[[Form, Form], bool]) -> bool:
    """Whether each part on the left can be given one of its own on the right (augmenting paths)."""
    if len(left) != len(right):
        return False
    table = [[same(a, b) for b in right] for a in left]
    taken: list[int | None] = [None] * len(right)

    def place(i: int, seen: set[int]) -> bool:
        for j, fits in enumerate(table[i]):
            if fits and j not in seen:
                seen.add(j)
                holder = taken[j]
                if holder is None or place(holder, seen):
                    taken[j] = i
                    return True
        return False

    return all(place(i, set()) for i in range(len(left)))
