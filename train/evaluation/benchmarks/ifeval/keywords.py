"""Which words and letters a response holds. Words are patterns, as they are for the original checker."""

from __future__ import annotations

import re
import string

from rocstar.train.evaluation.benchmarks.ifeval.check import Arguments, InstructionKind, holds


def all_occur(response: str, given: Arguments) -> bool:
    """Whether each keyword occurs, in any case, within longer words too."""
    return all(re.search(keyword, response, re.IGNORECASE) for keyword in given["keywords"])


def none_occurs(response: str, given: Arguments) -> bool:
    """Whether no forbidden word occurs as a word of its own."""
    return not any(re.search(rf"\b{word}\b", response, re.IGNORECASE) for word in given["forbidden_words"])


def keyword_occurs(response: str, given: Arguments) -> bool:
    """Whether the keyword occurs as often as it shall."""
    count = sum(1 for _ in re.finditer(given["keyword"].strip(), response, re.IGNORECASE))
    return holds(count, given["relation"], given["frequency"])


def letter_occurs(response: str, given: Arguments) -> bool:
    """Whether the letter occurs as often as it shall.

    For a character that is no letter of the alphabet the original draws one at random, anew for each verdict;
    here it is the verdict that most of the 26 letters give.
    """
    letter = given["letter"].strip().lower()
    if letter in string.ascii_lowercase:
        return _occurs(letter, response, given)
    return 2 * sum(_occurs(drawn, response, given) for drawn in string.ascii_lowercase) > 26


def character_occurs(response: str, given: Arguments) -> bool:
    """Whether the character that was asked for, a letter or not, occurs as often as it shall."""
    return _occurs(given["letter"].strip().lower(), response, given)


def _occurs(character: str, response: str, given: Arguments) -> bool:
    return holds(response.lower().count(character), given["let_relation"], given["let_frequency"])


KINDS = {
    "keywords:existence": InstructionKind(check=all_occur, arguments={"keywords": list}),
    "keywords:frequency": InstructionKind(
        check=keyword_occurs, arguments={"keyword": str, "frequency": int, "relation": str}
    ),
    "keywords:forbidden_words": InstructionKind(check=none_occurs, arguments={"forbidden_words": list}),
    "keywords:letter_frequency": InstructionKind(
        check=letter_occurs,
        arguments={"letter": str, "let_frequency": int, "let_relation": str},
        repaired=character_occurs,
    ),
}
