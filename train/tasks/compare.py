"""Compare a prediction with the truth by rules, without a computer algebra system. Pure, exact.

    prediction, truth ──clean──> equal as text? ──> read into forms ──> leaf by leaf:
        a number that is written out ──> numbers.py      words ──> words.py
        an operator that the truth lacks ──> no          else ──> a question: two expressions to be compared

Questions go to the sandbox (grader_symbolic.py), all of an answer at once; their answers decide. Everything else is
decided here, and nothing is evaluated.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocstar.engine.types import Task
from rocstar.train.tasks import forms
from rocstar.train.tasks.latex import bracket_depths, clean, is_closed, last_boxed
from rocstar.train.tasks.numbers import (
    has_exponent,
    numbers_equal,
    read_decimal_comma,
    read_number,
    read_scientific,
    unit_behind,
)
from rocstar.train.tasks.operators import MAX_NESTING, forbidden_operator, is_expression
from rocstar.train.tasks.rows import MARKS_OF_REASONING_GYM
from rocstar.train.tasks.words import is_product, is_words, unwrapped, words_equal

Question = tuple[str, str]
"""(prediction, truth): two expressions that may be equal."""
MAX_QUESTIONS = 64
MAX_WORDS = 4
"""The maximum number of words that a policy can be expected to give letter by letter."""
_SAYS = frozenset({"is", "are", "answer", "see", "proof", "solution:", "depends"})
_DIGITS = re.compile(r"[+-]?[0-9]+")
_RATIO = re.compile(r"(?:[0-9.]+|[A-Za-z])(?: ?: ?(?:[0-9.]+|[A-Za-z]))+(?: ?(?:\\text\{ ?)?[ap]\.?m\.? ?\}?)?")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_INTEGER = re.compile(r"(?P<name>[a-z]) ?\\in ?(?P<of>\\mathbb\{[ZN]\})")
_ARGUMENT = re.compile(r"(?P<of>(?<![A-Za-z])[A-Za-z]\()(?P<name>[a-z])\) ?=")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_LETTER = re.compile(r"(\\[A-Za-z]+|[A-Za-z])")
_SPACE = re.compile(r"(?<![0-9])\s+|\s+(?![0-9\s])")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPair:
    """A prediction beside its truth.

    Invariant: if `questions` is empty, `verdict` is final; else it is True, and `decide` returns the verdict
    once the questions are answered.
    """

    prediction: forms.Form
    truth: forms.Form
    method: str
    verdict: bool
    questions: tuple[Question, ...] = ()

    def decide(self, answers: Mapping[Question, bool]) -> bool:
        """Return the verdict; `answers`: True if the expressions of a question are equal."""
        leaves = _Leaves(answers)
        return forms.equal(self.prediction, self.truth, leaves.equal) and not leaves.open


class _Leaves:
    """Compares leaves; a pair that needs algebra counts as equal for now, and is added to `open`."""

    def __init__(self, answers: Mapping[Question, bool]) -> None:
        self._answers = answers
        self.open: dict[Question, None] = {}
        self.methods: set[str] = set()

    def equal(self, prediction: str, truth: str) -> bool:
        method, verdict = _leaf(prediction, truth)
        self.methods.add(method)
        if isinstance(verdict, bool):
            return verdict
        if verdict not in self._answers:
            self.open[verdict] = None
            return True
        return self._answers[verdict]


def compare(prediction: str, truth: str) -> AnswerPair:
    """Compare the content of a box with a task's answer, both as written."""
    if max(bracket_depths(prediction)) > max(MAX_NESTING, *bracket_depths(truth)):
        return AnswerPair(prediction=forms.NO_ANSWER, truth=forms.NO_ANSWER, method="nesting", verdict=False)
    left, right = clean(prediction), clean(_unboxed(truth))
    if _letters(left) == _letters(right):
        leaf = forms.Form(kind=forms.Kind.leaf, text=left)
        return AnswerPair(prediction=leaf, truth=leaf, method="exact", verdict=bool(left))
    theirs = forms.read_form(_renamed(left, right), is_truth=False)
    ours = forms.read_form(right, is_truth=True)
    leaves = _Leaves({})
    verdict = bool(left and right) and forms.equal(theirs, ours, leaves.equal)
    questions = tuple(leaves.open) if verdict else ()
    method = "symbolic" if questions else "parts" if len(leaves.methods) != 1 else min(leaves.methods)
    if len(questions) > MAX_QUESTIONS:
        questions, verdict, method = (), False, "too_many_parts"
    return AnswerPair(prediction=theirs, truth=ours, method=method, verdict=verdict, questions=questions)


def is_readable(truth: str) -> bool:
    """True if a rule reads the truth, so that other spellings than its own can be equal."""
    return bool(_DIGITS.fullmatch(truth)) or _is_read(forms.read_form(clean(_unboxed(truth)), is_truth=True))


def unreadable_truths(tasks: Sequence[Task]) -> list[str]:
    """Return the answers that no rule reads, of tasks that this judge scores."""
    read: dict[str, bool] = {}
    for task in tasks:
        if not task.meta.keys() >= MARKS_OF_REASONING_GYM and task.answer not in read:
            read[task.answer] = is_readable(task.answer)
    return [task.answer for task in tasks if not read.get(task.answer, True)]


def _is_read(form: forms.Form) -> bool:
    if form.kind is not forms.Kind.leaf:
        return form.kind is not forms.Kind.no_answer and all(map(_is_read, form.parts))
    text = form.text
    if read_number(text) or read_scientific(text) or read_decimal_comma(text):
        return True
    if is_words(text):
        words = unwrapped(text).casefold().split()
        return len(words) <= MAX_WORDS and _SAYS.isdisjoint(words)
    if _RATIO.fullmatch(text):
        return True
    value, _ = unit_behind(text)
    return is_closed(value) and is_expression(value)


def _leaf(prediction: str, truth: str) -> tuple[str, bool | Question]:
    """Return (method, verdict) of two leaves; instead of the verdict, the question that decides."""
    if _letters(prediction) == _letters(truth):
        return "exact", bool(prediction)
    right = read_number(truth)
    if right is not None:
        left = read_number(prediction)
        if left is None and right.places is not None:
            left = read_decimal_comma(prediction)
        if left is None and has_exponent(right):
            left = read_scientific(prediction, is_bare=True)
        return ("not_literal", False) if left is None else ("numeric", numbers_equal(left, right))
    if right := read_scientific(truth) or read_decimal_comma(truth):
        left = read_number(prediction) or read_scientific(prediction, is_bare=True)
        left = left or read_decimal_comma(prediction)
        return ("not_literal", False) if left is None else ("numeric", numbers_equal(left, right))
    if is_words(truth) and not is_product(truth):
        return "text", words_equal(prediction, truth)
    if ":" in truth or ":" in prediction or "'" in truth:  # a ratio, a time, a derivative: compared as text
        return "text", False
    (left_value, left_unit), (right_value, right_unit) = unit_behind(prediction), unit_behind(truth)
    if left_unit != right_unit and (None not in (left_unit, right_unit) or "%" in (left_unit, right_unit)):
        return "operator", False
    if _letters(left_value) == _letters(right_value):
        return "exact", True
    if left_value.count("\\circ") != right_value.count("\\circ"):  # algebra reads no degrees
        return "operator", False
    if forbidden_operator(left_value, right_value) is not None:
        return "operator", False
    return "symbolic", (left_value, right_value)


def _letters(text: str) -> str:
    """Return the text without text wrappers and spaces, except spaces between digits."""
    return _SPACE.sub("", _TEXT.sub(r" \1 ", text).strip())


def _renamed(prediction: str, truth: str) -> str:
    """Rename the prediction's bound variable as in the truth, in `2n, n \\in \\mathbb{Z}` or `f(n)=`."""
    for bound in (_INTEGER, _ARGUMENT):
        theirs, ours = bound.search(prediction), bound.search(truth)
        if theirs is None or ours is None or theirs["of"] != ours["of"]:
            continue
        names = {theirs["name"]: ours["name"]}
        if ours["name"] not in _COMMAND.sub("", prediction):
            prediction = "".join(names.get(part, part) for part in _LETTER.split(prediction))
    return prediction


def _unboxed(truth: str) -> str:
    """Return a truth without a box around it."""
    boxed = last_boxed(truth) if "box" in truth else None
    return truth if boxed is None else boxed
