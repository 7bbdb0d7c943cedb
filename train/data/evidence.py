"""Evidence besides equal words that two problems are one: rarity of words, sentences that only give the
answer format, and agreement of the answers. Pure.
"""

import re
import tomllib
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from rocstar.train.data.words import FIGURE

Agreement = Literal["agree", "differ", "unknown"]

_COMMON: Final = tomllib.loads(Path(__file__).with_name("common_words.toml").read_text(encoding="utf-8"))
_WEIGHTS: Final = {word: float(weight) for weight, words in _COMMON.items() for word in words.split()}
"""Weights of common words. Another word weighs 1."""
_WEIGHT_BY_DIGITS: Final = (0.1, 0.25, 0.5)
"""Weight of a number of one digit, of two, and of more."""

_SENTENCE_END: Final = re.compile(r"[.?!\n](?:(?<=\n)|(?:\\[\])]|\$+)?\s)")
"""A set of characters comes first: the search for one is several times faster than for an alternative."""
_PATTERNS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SAYS_HOW: Final = re.compile(_PATTERNS["says_how"], re.VERBOSE)
_SAYS_HOW_HAS: Final = ("answer", "prime", "lowest terms", "form", "common fraction", "\\boxed", "step", "####")
"""One of these is in every text in which _SAYS_HOW is found; looking for them takes less."""
_BEGINS: Final = re.compile(_PATTERNS["begins"], re.VERBOSE)
_SHORTEST: Final = 24
"""Characters: a problem of fewer is taken with its instructions, for it may be nothing else."""
_WRAPPING: Final = re.compile(r"\\(text|mathrm|mbox|left|right|displaystyle|!|,|;)\b|[\s{}$]|\\[!,;]|\^\\circ")
_BARE_FRACTION: Final = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")


def without_instructions(text: str) -> str:
    """Return the problem without figures in code and answer instructions; all of it if little would be
    left."""
    if "[asy]" in text:
        text = FIGURE.sub(" ", text)
    folded = text.casefold()
    may_say_how = any(part in folded for part in _SAYS_HOW_HAS)
    sentences, first = list[str](), 0
    for end in _SENTENCE_END.finditer(text):
        sentences.append(text[first : end.start() + 1])
        first = end.end()
    sentences.append(text[first:])
    kept = " ".join([asked for one in sentences if (asked := _asked(one, may_say_how))])
    return kept if len(kept) >= _SHORTEST else text


def _asked(sentence: str, may_say_how: bool) -> str:
    """Return a sentence up to its instruction."""
    sentence = sentence.strip()
    folded = sentence.casefold()
    if _BEGINS.match(folded):
        return ""
    if may_say_how and (found := _SAYS_HOW.search(folded)):
        sentence = sentence[: found.start()]
        return sentence if len(sentence) >= _SHORTEST else ""
    return sentence


@lru_cache(maxsize=1 << 16)
def weight_of(word: str) -> float:
    """Return the weight of a shared word as evidence, from 0 to 1."""
    if word.isdecimal():
        return _WEIGHT_BY_DIGITS[min(len(word), 3) - 1]
    return _WEIGHTS.get(word, 1.0)


def agreement(answer: str, other: str) -> Agreement:
    """Compare two answers: they agree if they are equal, or if one is the sum of the other's numbers.

    "m/n in lowest terms; find m + n" is how data sets make whole numbers of answers: 17/3 agrees with 20.
    """
    if not answer.strip() or not other.strip():
        return "unknown"
    one, two = _bare(answer), _bare(other)
    if one == two or (_number(one) is not None and _number(one) == _number(two)):
        return "agree"
    return "agree" if _is_sum(one, two) or _is_sum(two, one) else "differ"


def is_telling(answer: str) -> bool:
    """True if equal answers are evidence: a letter, a word or a small number is shared by chance."""
    return len(re.sub(r"\D", "", answer)) >= 2


def _bare(answer: str) -> str:
    text = _BARE_FRACTION.sub(r"\1/\2", answer.casefold())
    return _WRAPPING.sub("", text).removesuffix(".").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", "")) if len(text) < 40 else None
    except (ValueError, ZeroDivisionError):
        return None


def _is_sum(whole: str, parts: str) -> bool:
    numbers = [int(one) for one in re.findall(r"\d+", parts) if len(one) < 10]
    return len(numbers) > 1 and whole.isdecimal() and len(whole) < 10 and int(whole) == sum(numbers)
