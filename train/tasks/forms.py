"""Answers of several parts: lists, tuples, sets, intervals, unions, matrices. Pure.

    "x = 1, x = 2" ──read_form──> list of two named leaves ──equal──> leaf by leaf, by a given comparison

A list has no order and counts equal parts; a set does not count them; a tuple and an interval have an order
and brackets. So (2, 1) differs from {1, 2}, and 1, 1, 2 from 1, 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rocstar.train.tasks.latex import enclosed, split, unparenthesised
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
_VARIABLE = re.compile(r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:\{[^{}]*\}|[0-9A-Za-z]))?'*")
_CONSTANT = re.compile(r"\\(?:frac|sqrt|pi|infty|cdot|times)(?![A-Za-z])|[0-9.,+*/^(){}\[\] -]|e")
_OR = re.compile(r"\\text\{\s*,?\s*or\s*,?\s*\}|\\(?:or|lor|vee)(?![A-Za-z])|(?<![A-Za-z\\{])or(?![a-z}])")
_WITHOUT = re.compile(r"\\mathbb\{R\}\s*(?:\\setminus|-)\s*\\?\{([^{},]+)\\?\}")
_SUCH_THAT = re.compile(r"\||\\mid(?![A-Za-z])|:")
_EVERYTHING = ("-\\infty", "\\infty")
_ROW = re.compile(r"\\\\")
_CELL = re.compile(r"&")
_MATRIX = re.compile(r"\\begin\{([pb]?)matrix\}(.*)\\end\{\1matrix\}", re.DOTALL)
_EITHER = re.compile(r"\\pm(?![A-Za-z])|\u00b1")
_EITHER_DOWN = re.compile(r"\\mp(?![A-Za-z])")
_SCRIPT = re.compile(r"_(?:\{[^{}]*\}|[0-9A-Za-z])")
_WORD = re.compile(r"[A-Za-z']+")
_NAME = (
    r"(?:\\(?:angle|triangle|measuredangle|sphericalangle) ?)?"
    r"(?:[A-Za-z]+(?![A-Za-z])"
    r"|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|omega|phi|varphi|psi|sigma|rho|tau|ell|pi|Delta)(?![A-Za-z])"
    r"|\\(?:overline|vec|bar|hat|overrightarrow|widehat|tilde|dot) ?\{ ?[A-Za-z]+ ?\}"
    r"|\\text\{[A-Za-z' -]+\})'*"
)
_LABEL = re.compile(
    rf"\|?{_NAME}(?:\^\{{-1\}}(?=\())?(?: *(?:\((?:[^()=<>]*)\)|{_NAME}))*\|?(?: ?: ?[A-Z]+)*"
    rf"|\( ?{_NAME}(?: ?, ?{_NAME})* ?\)|\[[A-Z]+\]|\\frac\{{[A-Z]{{2,}}\}}\{{[A-Z]{{2,}}\}}"
)
"""The name of a quantity: letters, a function with arguments, a tuple of names, a ratio of segments."""
_PRODUCT = re.compile(r"(?<![A-Za-z\\])[xyz]\([^()]*[-+*/^]")
"""A variable before parentheses, in the position of a function's name."""
_NO_LABEL_WORDS = (
    "not no or and nor either neither never if where when unless except than but is isn't are was less more "
    "minus plus times half twice double triple negative opposite about almost nearly over per by one two "
    "three four five six seven eight nine ten zero wrong incorrect false square squared cube root reciprocal "
    "without excluding instead different another other else guess maybe perhaps at up to "
    "below above between beyond exceeds"
)
_NO_LABEL = frozenset(_NO_LABEL_WORDS.split())
"""Words that qualify a value instead of naming a quantity."""


class Kind(StrEnum):
    """The relation between the parts."""

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
    """An answer and its parts. `text` is the complete text, `label` the text before its equals sign."""

    kind: Kind
    text: str = ""
    brackets: str = ""
    parts: tuple[Form, ...] = ()
    label: str | None = None

    @property
    def equation(self) -> str | None:
        """The LaTeX of a leaf that is an equation between variables, else None."""
        if self.kind is not Kind.leaf:
            return None
        if self.label is None:
            return self.text if len(split(self.text, _EQUALS)) == 2 else None
        is_relation = _VARIABLE.fullmatch(self.label) and not _is_constant(self.text)
        return f"{self.label}={self.text}" if is_relation else None


NO_ANSWER = Form(kind=Kind.no_answer)
LeavesEqual = Callable[[str, str], bool]
"""(prediction, truth) -> True if two leaves are equal."""


def read_form(text: str, *, is_truth: bool, depth: int = 0) -> Form:
    """Read a clean text. Of a chain of equations the last member counts in a truth; in a prediction all must
    be equal."""
    if depth > MAX_DEPTH:
        return NO_ANSWER
    if read_number(text) or read_decimal_comma(text):
        return Form(kind=Kind.leaf, text=text)

    def read(part: str) -> Form:
        return read_form(part, is_truth=is_truth, depth=depth + 1)

    pieces = _pieces(text)
    if len(pieces) > MAX_PARTS:
        return NO_ANSWER
    if len(pieces) > 1:
        made = tuple(map(read, pieces))
        if _SEMICOLON.search(text):  # "p=5,q=2; p=7,q=2": each is one solution
            made = tuple(
                Form(kind=Kind.row, brackets="()", parts=one.parts) if one.kind is Kind.list else one for one in made
            )
        if _OR.search(text) and all(map(_is_solved, made)) and len({part.label for part in made}) == 1:
            return Form(kind=Kind.union, text=text, parts=_flat(made, Kind.union))
        if (both := _between(text, made)) is not None:
            return both
        return Form(kind=Kind.list, text=text, parts=_flat(made, Kind.list))
    if is_words(text):
        return Form(kind=Kind.leaf, text=text)
    if _EITHER.search(text) and text.count("\\pm") + text.count("\u00b1") == 1:
        up, down = _EITHER.sub("+", text), _EITHER.sub("-", text)
        return Form(kind=Kind.list, parts=(read(_EITHER_DOWN.sub("-", up)), read(_EITHER_DOWN.sub("+", down))))
    if (solved := _range(text)) is not None:
        return solved
    label, value = _labelled(text, is_truth=is_truth)
    if value is None:
        return NO_ANSWER
    if label is not None:
        return replace(read(value), label=label)
    return _bracketed(value, read)


def _bracketed(text: str, read: Callable[[str], Form]) -> Form:
    """Read a union, a matrix, or a bracketed text; else a leaf."""
    united = split(text, _CUP)
    if len(united) > 1:
        return Form(kind=Kind.union, text=text, parts=tuple(map(read, united)))
    if matrix := _MATRIX.fullmatch(text):
        rows = [split(row, _CELL) for row in _ROW.split(matrix[2].strip().removesuffix("\\\\"))]
        made = tuple(Form(kind=Kind.row, brackets="row", parts=tuple(map(read, row))) for row in rows)
        return Form(kind=Kind.row, brackets="matrix", parts=made)
    found = enclosed(text)
    if found is None:
        return Form(kind=Kind.leaf, text=text)
    opening, content, closing = found
    pieces = _pieces(content)
    if opening == "\\{":
        described = split(content, _SUCH_THAT)
        if len(described) == 2 and _VARIABLE.fullmatch(split(described[0], _IN)[0]):
            return read(described[1]) if _RELATION.search(described[1]) else Form(kind=Kind.leaf, text=text)
        return Form(kind=Kind.set, text=text, parts=_flat([read(piece) for piece in pieces if piece], Kind.list))
    if len(pieces) == 1:
        bare = unparenthesised(text)
        return read(bare) if bare != text else Form(kind=Kind.leaf, text=text)
    return Form(kind=Kind.row, text=text, brackets=opening + closing, parts=tuple(map(read, pieces)))


def _flat(parts: Sequence[Form], kind: Kind) -> tuple[Form, ...]:
    """Flatten parts of the given kind: `\\pm 1, \\pm 2` are four."""
    return tuple(
        one for part in parts for one in (part.parts if part.kind is kind and part.label is None else (part,))
    )


def _interval(low: str, high: str, brackets: str, text: str, label: str | None = None) -> Form:
    ends = tuple(Form(kind=Kind.leaf, text=end) for end in (low, high))
    return Form(kind=Kind.row, text=text, brackets=brackets, parts=ends, label=label)


def _all_but(value: str, text: str, label: str | None = None) -> Form:
    low, high = _EVERYTHING
    sides = (_interval(low, value, "()", text), _interval(value, high, "()", text))
    return Form(kind=Kind.union, text=text, parts=sides, label=label)


def _range(text: str) -> Form | None:
    """Return the interval or union of a solved inequality in one variable or of its name; else None."""
    described = split(text, _SUCH_THAT) if "|" in text else []
    if len(described) == 2 and _VARIABLE.fullmatch(described[0]) and _RELATION.search(described[1]):
        return _range(described[1])
    if text == "\\mathbb{R}":
        return _interval(*_EVERYTHING, "()", text)
    if text == "\\emptyset":
        return Form(kind=Kind.set, text=text)
    if found := _WITHOUT.fullmatch(text):
        return _all_but(found[1].strip().removesuffix("\\"), text)
    signs = [found[0] for found in _RELATION.finditer(text)]
    sides = split(text, _RELATION)
    if not signs or len(sides) != len(signs) + 1 or "=" in text:
        return None
    if (len(signs) == 1 and _is_constant(sides[0]) and sides[0]) or (signs[0] in (">", "\\geq") and len(signs) == 2):
        sides, signs = sides[::-1], [_TURNED[sign] for sign in reversed(signs)]
    if len(signs) == 1:
        (variable, end), (sign,) = sides, signs
        if (variable and not _VARIABLE.fullmatch(variable)) or not _is_constant(end) or not end:
            return None
        label = _label(variable) or None
        if sign == "\\neq":
            return _all_but(end, text, label)
        if sign in ("<", "\\leq"):
            return _interval(_EVERYTHING[0], end, "()" if sign == "<" else "(]", text, label)
        return _interval(end, _EVERYTHING[1], "()" if sign == ">" else "[)", text, label)
    if len(signs) != 2 or not set(signs) <= {"<", "\\leq"} or not _VARIABLE.fullmatch(sides[1]):
        return None
    if sides[1] in sides[0] + sides[2] or not (sides[0] and sides[2] and _is_rising(sides[0], sides[2])):
        return None
    brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
    return _interval(sides[0], sides[2], brackets, text, _label(sides[1]))


def _between(text: str, parts: Sequence[Form]) -> Form | None:
    """Return the interval of `x > 1, x < 2`; None for other parts and for an empty interval."""
    if len(parts) != 2 or not all(map(_is_solved, parts)) or parts[0].label != parts[1].label:
        return None
    if any(part.kind is not Kind.row for part in parts):
        return None
    for lower, upper in (parts, parts[::-1]):
        low, high = lower.parts[0].text, upper.parts[1].text
        is_half = (lower.parts[1].text, upper.parts[0].text) == _EVERYTHING[::-1]
        if is_half and read_number(low) and read_number(high) and _is_rising(low, high):
            return _interval(low, high, lower.brackets[0] + upper.brackets[1], text, lower.label)
    return None


_TURNED = {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq", "\\neq": "\\neq"}


def _is_constant(text: str) -> bool:
    return not _CONSTANT.sub("", text)


def _is_rising(low: str, high: str) -> bool:
    """True if the ends of a chain may be those of an interval: two numbers in order, or not both numbers."""
    ends = read_number(low), read_number(high)
    return None in ends or ends[0].value < ends[1].value  # type: ignore[union-attr]


def _is_solved(form: Form) -> bool:
    """True if a form is the range of a solved inequality."""
    return form.kind in (Kind.row, Kind.union) and bool(_RELATION.search(form.text))


def _pieces(text: str) -> list[str]:
    if is_words(text) and not re.search(r"\b(?:and|or)\b", text):
        return [text]
    for separator in (_SEMICOLON, _AND):
        pieces = split(text, separator)
        if len(pieces) > 1 and all(pieces):
            return [inner for piece in pieces for inner in (_pieces(piece) if separator is _AND else [piece])]
    pieces = split(text, _COMMA)
    if pieces and not pieces[-1]:
        pieces.pop()
    return pieces or [""]


def _labelled(text: str, *, is_truth: bool) -> tuple[str | None, str | None]:
    """Return (label, value) of `x = 42`; the value is None for a chain of different values."""
    if _RELATION.search(text):
        return None, text
    inside = split(text, _IN)
    if len(inside) == 2 and is_label(inside[0]):
        return _label(inside[0]), inside[1]
    about = split(text, _APPROX)
    if len(about) > 2:
        return None, None
    if len(about) == 2:
        if not about[0] or is_label(about[0]):
            return _label(about[0]) or None, about[1]
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
        if _VARIABLE.fullmatch(members[1]) and (not is_truth or _is_constant(members[0])):
            return _label(members[1]), members[0]
        numbers = [read_number(member) for member in members]
        if all(numbers):
            return None, members[1] if is_truth or numbers[0] == numbers[1] else None
        return None, text
    if is_truth:
        return label, members[-1]
    values = [read_number(member) for member in members[1 if label is not None else 0 :]]
    if any(value is None or value.value != values[-1].value for value in values if values[-1]) or not values[-1]:
        return None, None
    return label, members[-1]


def is_label(text: str) -> bool:
    """True if a text names a quantity: letters, an index, a function; not a sum or a coefficient."""
    bare = _SCRIPT.sub("", text).strip()
    return (
        bool(_LABEL.fullmatch(bare))
        and not _PRODUCT.search(bare)
        and _NO_LABEL.isdisjoint(word.lower() for word in _WORD.findall(bare) if not word.isupper())
    )


def _label(text: str) -> str:
    return re.sub(r"[\s{}]", "", text)


def equal(prediction: Form, truth: Form, leaves_equal: LeavesEqual) -> bool:
    """Compare two answers part by part. More equal leaves never make them less equal.

    If both have a label, the labels must be equal; a list of named parts may be answered by the bare values
    in that order.
    """
    if Kind.no_answer in (prediction.kind, truth.kind):
        return False
    if None not in (prediction.label, truth.label) and prediction.label != truth.label:
        return _equations_equal(prediction, truth, leaves_equal)

    def same(left: Form, right: Form) -> bool:
        return equal(left, right, leaves_equal)

    kinds = {prediction.kind, truth.kind}
    if kinds == {Kind.leaf}:
        if (prediction.label is None) != (truth.label is None) and prediction.equation and truth.equation:
            return _equations_equal(prediction, truth, leaves_equal)
        return leaves_equal(prediction.text, truth.text)
    left, right = prediction.parts, truth.parts
    if kinds == {Kind.row}:
        if prediction.brackets != truth.brackets or len(left) != len(right):
            return False
        # Compare all pairs, so that all questions are found.
        return all([same(a, b) for a, b in zip(left, right, strict=True)])
    if kinds == {Kind.set}:
        return _cover(left, right, same)
    if kinds in ({Kind.list}, {Kind.union}):
        names = [part.label for part in right]
        is_named = None not in names and len(set(names)) == len(names)
        if kinds == {Kind.list} and is_named and not any(part.label for part in left):
            return len(left) == len(right) and all([same(a, b) for a, b in zip(left, right, strict=False)])
        if all(part.kind is Kind.row for part in (*left, *right)):  # points: one named twice is one
            return _cover(left, right, same)
        return _match(left, right, same)
    if kinds == {Kind.list, Kind.set}:
        return _match(left, right, same)
    if kinds == {Kind.list, Kind.union} and all(map(_is_solved, (*left, *right))):
        return _match(left, right, same)
    return (
        kinds <= _OF_NUMBERS
        and _is_range(prediction)
        and _is_range(truth)
        and leaves_equal(prediction.text, truth.text)
    )


def _equations_equal(prediction: Form, truth: Form, leaves_equal: LeavesEqual) -> bool:
    left, right = prediction.equation, truth.equation
    return left is not None and right is not None and leaves_equal(left, right)


_OF_NUMBERS = frozenset({Kind.leaf, Kind.row, Kind.union})


def _is_range(form: Form) -> bool:
    """True if an answer may be a set of real numbers: a relation, an interval, a union."""
    if form.kind is Kind.row:
        return len(form.parts) == 2 and form.brackets != "matrix"
    return form.kind is Kind.union or bool(_RELATION.search(form.text))


def _cover(left: Sequence[Form], right: Sequence[Form], same: Callable[[Form, Form], bool]) -> bool:
    table = [[same(a, b) for b in right] for a in left]
    return (
        all(any(row) for row in table)
        and all(any(column) for column in zip(*table, strict=True))
        and (bool(left) == bool(right))
    )


def _match(left: Sequence[Form], right: Sequence[Form], same: Callable[[Form, Form], bool]) -> bool:
    """True if each part on the left has a different equal part on the right (augmenting paths)."""
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
