"""Strict answers: the boxed value inside the single `<answer>` block, compared exactly. Pure, stdlib only.

The input is the text the policy wrote and nothing else: tool output in it could supply an answer.
Source: arXiv 2508.20722, 2.1 and 2.2.1 ("extracted from \\boxed{} within the <answer> tag").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

OPEN_TAG = "<answer>"
CLOSE_TAG = "</answer>"
_BOX = "\\boxed{"

_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")


class ExtractionFailure(StrEnum):
    """Why a text holds no answer in strict mode."""

    no_answer = "no_answer"
    several_answers = "several_answers"
    no_box = "no_box"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """Exactly one of `answer` (the content of the box, stripped) and `failure` is set."""

    answer: str | None = None
    failure: ExtractionFailure | None = None

    def __post_init__(self) -> None:
        if (self.answer is None) == (self.failure is None):
            raise ValueError(f"answer={self.answer!r} and failure={self.failure!r}: exactly one must be set")


def num_answers(policy_text: str) -> int:
    """Number of answer blocks, for RoC's p_format (Eq. 5): 0 if no block is complete, else the larger
    count of opening and closing tags, so that a stray tag counts as a further answer.
    """
    start = policy_text.find(OPEN_TAG)
    if start < 0 or CLOSE_TAG not in policy_text[start:]:
        return 0
    return max(policy_text.count(OPEN_TAG), policy_text.count(CLOSE_TAG))


def extract_answer(policy_text: str) -> Extraction:
    """The content of the last `\\boxed{...}` inside the only `<answer>...</answer>` of the text."""
    count = num_answers(policy_text)
    if count == 0:
        return Extraction(failure=ExtractionFailure.no_answer)
    if count > 1:
        return Extraction(failure=ExtractionFailure.several_answers)
    block = policy_text.partition(OPEN_TAG)[2].partition(CLOSE_TAG)[0]
    boxed = _last_boxed(block)
    if boxed is None:
        return Extraction(failure=ExtractionFailure.no_box)
    return Extraction(answer=boxed.strip())


def _last_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{`, up to its matching brace; None without one. Escaped braces are text."""
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth, i = 1, start + len(_BOX)
    while i < len(text):
        if text[i] == "\\":
            i += 1
        elif text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0:
                return text[start + len(_BOX) : i]
        i += 1
    return None


def normalise(text: str) -> str:
    """Drop what carries no value: outer and doubled whitespace, dollar signs, thousands commas, a leading
    plus, one trailing period. Nothing more: 42% stays 42%.
    """
    text = " ".join(text.replace("\\$", "").replace("$", "").split())
    text = text.removesuffix(".").rstrip()
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return text.removeprefix("+")


def exact_match(prediction: str, truth: str) -> bool:
    """Equal after `normalise`, or equal as integers (042 is 42). An empty side matches nothing."""
    left, right = normalise(prediction), normalise(truth)
    if not left or not right:
        return False
    if _INTEGER.fullmatch(left) and _INTEGER.fullmatch(right):
        return _canonical_integer(left) == _canonical_integer(right)
    return left == right


def _canonical_integer(digits: str) -> str:
    """Without leading zeros, and without a sign on zero. On strings: int() refuses thousands of digits."""
    sign = "-" if digits.startswith("-") else ""
    magnitude = digits.lstrip("+-").lstrip("0")
    return sign + magnitude if magnitude else "0"


def plain_numbers_equal(prediction: str, truth: str) -> bool | None:
    """Whether two plain decimal numbers are equal, exactly (42.0 is 42); None if one is no plain number."""
    if not (_PLAIN_NUMBER.fullmatch(prediction) and _PLAIN_NUMBER.fullmatch(truth)):
        return None
    return Decimal(prediction) == Decimal(truth)
