"""In which language and in which case a response is written.

The original detects the language with fresh random numbers each time, and gives one text several verdicts;
here the detector is seeded, so that a text has one.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from rocstar.sandbox.extras import install_command
from rocstar.train.evaluation.benchmarks.ifeval.check import Arguments, InstructionKind, holds
from rocstar.train.evaluation.benchmarks.ifeval.words import count_capital_words
from rocstar.train.recipe.errors import ConfigError

SEED = 0
ENGLISH = "en"


@cache
def detectors() -> Any:
    """Return the factory of seeded detectors; ConfigError without the package.

    One of our own: the seed of the package's own would be everybody's in this process.
    """
    try:
        from langdetect import PROFILES_DIRECTORY, DetectorFactory
    except ImportError:
        raise ConfigError(
            f"the set 'ifeval' needs the package langdetect, which is missing; run: {install_command('eval')}"
        ) from None
    factory = DetectorFactory()
    factory.seed = SEED
    factory.load_profile(PROFILES_DIRECTORY)
    return factory


@lru_cache(maxsize=64)
def language(text: str) -> str | None:
    """Return the code of the likeliest of 55 languages (ISO 639-1; zh-cn, zh-tw); None without a letter."""
    from langdetect import LangDetectException

    detector = detectors().create()
    detector.append(text)
    try:
        found: str = detector.detect()
    except LangDetectException:
        return None
    return found


def is_in_language(response: str, given: Arguments) -> bool:
    """Whether the response is in the language; one in which no language is found counts as being."""
    return language(response) in (None, given["language"])


def is_english_capital(response: str, given: Arguments) -> bool:
    """Whether all letters are capital and the language found is English."""
    return response.isupper() and language(response) in (None, ENGLISH)


def is_capital_english(response: str, given: Arguments) -> bool:
    """As `is_english_capital`, but the language is that of the text in lower case, which detectors know."""
    return response.isupper() and language(response.lower()) in (None, ENGLISH)


def is_english_lowercase(response: str, given: Arguments) -> bool:
    """Whether no letter is capital and the language found is English."""
    return response.islower() and language(response) in (None, ENGLISH)


def enough_capital_words(response: str, given: Arguments) -> bool:
    """Whether there are as many words in capital letters as there shall be."""
    return holds(count_capital_words(response), given["capital_relation"], given["capital_frequency"])


KINDS = {
    "language:response_language": InstructionKind(check=is_in_language, arguments={"language": str}),
    "change_case:english_capital": InstructionKind(check=is_english_capital, repaired=is_capital_english),
    "change_case:english_lowercase": InstructionKind(check=is_english_lowercase),
    "change_case:capital_word_frequency": InstructionKind(
        check=enough_capital_words, arguments={"capital_frequency": int, "capital_relation": str}
    ),
}
