"""The program that grades as the original does: right if one of two graders says so. A sandboxed one.

Lines in and out as in grader_symbolic.py: nothing, then text and truth, then the nonce. The first looks for
a closing phrase, a box, a last "is" or "="; it compares texts, then numbers to a relative 1e-4 and with or
without percent, then expressions. The second is math-verify with its own extraction.
"""

import json
import logging
import math
import re
import sys

import sympy
from latex2sympy2_extended.latex2sympy2 import latex2sympy
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

READ = "truths read"
_BEFORE = ("answer:", "answer is", "answers are")
_BEHIND = ("is answer", "is the answer", "are answers", "are the answers")
_SAYS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")
_UNITS = re.compile(
    r"degrees?|centimeters?|meters?|miles?|seconds?|minutes?|hours?|days?|weeks?|months?|years?|feet|foot|inch(?:es)?"
    r"|yards?|cm\b|km\b|mm\b"
)
_LEFT_OUT = ("\n", "\\!", "\\,", "\\left", "\\right", "^{\\circ}", "^\\circ", "\\$", "$", "\\%", "%")
_TAGS = ("<answer>", "</answer>")
_SPELLINGS = (("tfrac", "frac"), ("dfrac", "frac"), *((text, "") for text in _LEFT_OUT + _TAGS), ("{,}", ","))
RELATIVE = 1e-4


def answer_in(text: str) -> str:
    """Return the answer that the first grader extracts from a transcript."""
    for phrase in _BEFORE:
        at = text.lower().rfind(phrase)
        text = text[at + len(phrase) :].strip() if at >= 0 else text
    for phrase in _BEHIND:
        at = text.lower().rfind(phrase)
        text = text[:at].strip() if at >= 0 else text
    text = _last_box(text) or text
    if ". " in text:
        text = text[: text.rfind(". ")].strip()
    for phrase in _SAYS:
        at = text.lower().rfind(phrase)
        text = text[at + len(phrase) :].strip() if at >= 0 else text
    return text


def _last_box(text: str) -> str | None:
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    depth = 0
    for i in range(text.index("{", start), len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[text.index("{", start) + 1 : i]
    return None


def normalised(text: str) -> str:
    """Return the text without the parts that the first grader ignores."""
    text = text.strip().removesuffix(".")
    for old, new in _SPELLINGS:
        text = text.replace(old, new)
    text = re.sub(r"\\(?:text|mbox|mathrm)\{([^{}]*)\}", r"\1", text)
    text = _UNITS.sub("", text.lower())
    text = re.sub(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", text)
    text = re.sub(r"\\frac\{?(-?[0-9]+)\}?\{?([0-9]+)\}?$", r"\1/\2", text)
    text = text.replace(" ", "")
    whole = re.fullmatch(r"(-?)0*([0-9]+)(?:\.0*)?", text)
    return whole[1] + whole[2] if whole else text


def _number(text: str) -> float | None:
    text = text.replace(",", "").strip()
    share = text.endswith("%")
    try:
        value = float(text.removesuffix("%").removesuffix("\\"))
    except ValueError:
        return None
    return value / 100 if share else value


def first_grader(text: str, truth: str) -> bool:
    """The phrase, the box, and a forgiving comparison."""
    prediction = answer_in(text)
    left, right = normalised(prediction), normalised(truth)
    if not left:
        return False
    if left == right:
        return True
    here, there = _number(prediction) or _number(left), _number(truth)
    if here is not None and there is not None:
        return any(math.isclose(here, value, rel_tol=RELATIVE) for value in (there / 100, there, there * 100))
    parts = [side.strip("()[]").split(",") for side in (left, right)]
    if len(parts[0]) != len(parts[1]):
        return False
    if len(parts[0]) > 1:
        same_brackets = left[0] == right[0] and left[-1] == right[-1]
        return same_brackets and all(_same(a, b) for a, b in zip(*parts, strict=True))
    return _same(left, right)


def _same(left: str, right: str) -> bool:
    if left == right:
        return True
    if re.fullmatch(r"-?[0-9]+", left) or re.search(r"\^\{|\^\(|\^[0-9][0-9]", left):
        return False
    try:
        return bool(sympy.simplify(latex2sympy(left) - latex2sympy(right)) == 0)
    except Exception:  # as there: what cannot be compared is not equal
        return False


def second_grader(text: str, truth: str) -> bool:
    """Math-verify with its own extraction."""
    gold = parse("\\boxed{" + truth + "}", [LatexExtractionConfig()], parsing_timeout=None)
    found = parse(text, [ExprExtractionConfig(), LatexExtractionConfig()], parsing_timeout=None)
    return bool(verify(gold, found, timeout_seconds=None))


def main() -> None:
    """Grade one job."""
    logging.disable()
    sys.stdin.readline()
    print(READ, flush=True)
    job = json.loads(sys.stdin.readline())
    verdict = False
    for grader in (first_grader, second_grader):
        try:
            verdict = verdict or grader(job["text"], job["truth"])
        except Exception:  # as there
            continue
    print(f"\n{sys.stdin.readline().strip()} {int(verdict)}")


if __name__ == "__main__":
    main()
