"""How long a response is: in sentences, words and paragraphs."""

from __future__ import annotations

import re

from rocstar.train.evaluation.benchmarks.ifeval.check import Arguments, InstructionKind, holds
from rocstar.train.evaluation.benchmarks.ifeval.sentences import count_sentences
from rocstar.train.evaluation.benchmarks.ifeval.words import count_words

_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_BREAKS_A_WORD = re.compile(r"[.,?!'\"]")


def enough_sentences(response: str, given: Arguments) -> bool:
    """Whether there are as many sentences as there shall be."""
    return holds(count_sentences(response), given["relation"], given["num_sentences"])


def enough_words(response: str, given: Arguments) -> bool:
    """Whether there are as many words as there shall be."""
    return holds(count_words(response), given["relation"], given["num_words"])


def divided_paragraphs(response: str, given: Arguments) -> bool:
    """Whether *** parts the response into so many paragraphs; an empty one may be first or last."""
    first, *between = _DIVIDER.split(response)
    last = [between.pop()] if between else []
    if not all(paragraph.strip() for paragraph in between):
        return False
    count = len(between) + sum(bool(paragraph.strip()) for paragraph in [first, *last])
    return count == int(given["num_paragraphs"])


def nth_paragraph(response: str, given: Arguments) -> bool:
    """Whether empty lines part the response into so many paragraphs, of which the n-th begins with the word.

    The original counts paragraphs that hold something, but takes the n-th of all: behind a blank one it looks
    at another than it means.
    """
    paragraphs = response.split("\n\n")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    return count >= given["nth_paragraph"] and _begins_with(paragraphs, count, given)


def nth_paragraph_that_counts(response: str, given: Arguments) -> bool:
    """As `nth_paragraph`, of the paragraphs that were counted; a first word of several is compared whole."""
    paragraphs = [paragraph for paragraph in response.split("\n\n") if paragraph.strip()]
    return len(paragraphs) >= given["nth_paragraph"] and _begins_with(
        paragraphs, len(paragraphs), given, several=True
    )


def _begins_with(paragraphs: list[str], count: int, given: Arguments, *, several: bool = False) -> bool:
    words = paragraphs[given["nth_paragraph"] - 1].split()
    length = len(given["first_word"].split()) if several else 1
    first = " ".join(map(_bare, words[:length]))
    return bool(words) and count == given["num_paragraphs"] and first == given["first_word"].lower()


def _bare(word: str) -> str:
    """Lower case, up to the first mark, without quotes before it."""
    return _BREAKS_A_WORD.split(word.lstrip("'").lstrip('"'), maxsplit=1)[0].lower()


KINDS = {
    "length_constraints:number_sentences": InstructionKind(
        check=enough_sentences, arguments={"num_sentences": int, "relation": str}
    ),
    "length_constraints:number_words": InstructionKind(
        check=enough_words, arguments={"num_words": int, "relation": str}
    ),
    "length_constraints:number_paragraphs": InstructionKind(
        check=divided_paragraphs, arguments={"num_paragraphs": int}
    ),
    "length_constraints:nth_paragraph_first_word": InstructionKind(
        check=nth_paragraph,
        arguments={"num_paragraphs": int, "nth_paragraph": int, "first_word": str},
        repaired=nth_paragraph_that_counts,
    ),
}
