"""The 25 kinds of instructions: their arguments, their checks, and the verdict on a response.

response ──unchanged───────────────────────> strict, fixed
         ──8 variants, any may follow it───> loose
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from rocstar.sandbox.extras import install_command
from rocstar.train.evaluation.benchmarks.ifeval.english_text import (
    count_capital_words,
    count_sentences,
    count_words,
)
from rocstar.train.recipe.errors import ConfigError

Arguments = Mapping[str, Any]
"""An instruction's numbers and words, by the names of the published rows."""

Check = Callable[[str, Arguments], bool]
"""True if a response follows an instruction. Pure, and linear in the response."""

AT_LEAST, LESS_THAN = "at least", "less than"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionKind:
    """One of the 25 kinds.

    Invariant: `check` gives the verdict of the original checker, including its bugs; `repaired`, if set,
    gives the verdict that the instruction asks for.
    """

    check: Check
    arguments: Mapping[str, type] = field(default_factory=dict)
    """by name, all required"""
    repaired: Check | None = None


def compare_count(count: int, relation: str, threshold: int) -> bool:
    """True if a count is at least, or less than, the threshold."""
    return count < threshold if relation == LESS_THAN else count >= threshold


def all_occur(response: str, given: Arguments) -> bool:
    """Check that each keyword, a pattern as in the original, occurs in any case, also within longer words."""
    return all(re.search(keyword, response, re.IGNORECASE) for keyword in given["keywords"])


def none_occurs(response: str, given: Arguments) -> bool:
    """Check that no forbidden word occurs as a separate word."""
    return not any(re.search(rf"\b{word}\b", response, re.IGNORECASE) for word in given["forbidden_words"])


def keyword_occurs(response: str, given: Arguments) -> bool:
    """Check the number of occurrences of the keyword."""
    count = sum(1 for _ in re.finditer(given["keyword"].strip(), response, re.IGNORECASE))
    return compare_count(count, given["relation"], given["frequency"])


def letter_occurs(response: str, given: Arguments) -> bool:
    """Check the number of occurrences of the letter.

    For a character outside the alphabet the original samples a letter for each verdict; this returns the
    verdict of the majority of the 26 letters.
    """
    letter = given["letter"].strip().lower()
    if letter in string.ascii_lowercase:
        return _occurs(letter, response, given)
    return 2 * sum(_occurs(drawn, response, given) for drawn in string.ascii_lowercase) > 26


def character_occurs(response: str, given: Arguments) -> bool:
    """Check the number of occurrences of the requested character, a letter or not."""
    return _occurs(given["letter"].strip().lower(), response, given)


def _occurs(character: str, response: str, given: Arguments) -> bool:
    return compare_count(response.lower().count(character), given["let_relation"], given["let_frequency"])


SEED = 0
ENGLISH = "en"


@cache
def detectors() -> Any:
    """Return the factory of seeded detectors; ConfigError without the package.

    The factory is separate, because the seed of the package's factory is global. The original does not seed,
    so one text can get several verdicts.
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
    """Check the language; a response in which no language is found passes."""
    return language(response) in (None, given["language"])


def is_english_capital(response: str, given: Arguments) -> bool:
    """Check that all letters are capital and the language found is English."""
    return response.isupper() and language(response) in (None, ENGLISH)


def is_capital_english(response: str, given: Arguments) -> bool:
    """Check as `is_english_capital`, but find the language of the lower-case text, which detectors
    support."""
    return response.isupper() and language(response.lower()) in (None, ENGLISH)


def is_english_lowercase(response: str, given: Arguments) -> bool:
    """Check that no letter is capital and the language found is English."""
    return response.islower() and language(response) in (None, ENGLISH)


def enough_capital_words(response: str, given: Arguments) -> bool:
    """Check the number of words in capital letters."""
    return compare_count(count_capital_words(response), given["capital_relation"], given["capital_frequency"])


_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_BREAKS_A_WORD = re.compile(r"[.,?!'\"]")


def enough_sentences(response: str, given: Arguments) -> bool:
    """Check the number of sentences."""
    return compare_count(count_sentences(response), given["relation"], given["num_sentences"])


def enough_words(response: str, given: Arguments) -> bool:
    """Check the number of words."""
    return compare_count(count_words(response), given["relation"], given["num_words"])


def divided_paragraphs(response: str, given: Arguments) -> bool:
    """Check the number of paragraphs between ***; an empty one may be first or last."""
    first, *between = _DIVIDER.split(response)
    last = [between.pop()] if between else []
    if not all(paragraph.strip() for paragraph in between):
        return False
    count = len(between) + sum(bool(paragraph.strip()) for paragraph in [first, *last])
    return count == int(given["num_paragraphs"])


def nth_paragraph(response: str, given: Arguments) -> bool:
    """Check the number of paragraphs between empty lines, and the first word of the n-th.

    The original counts non-empty paragraphs but takes the n-th of all: after an empty one it checks the wrong
    paragraph.
    """
    paragraphs = response.split("\n\n")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    return count >= given["nth_paragraph"] and _begins_with(paragraphs, count, given)


def nth_nonblank_paragraph(response: str, given: Arguments) -> bool:
    """Check as `nth_paragraph`, but among the counted paragraphs; a first word of several words is
    compared in full."""
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
    """Return a word in lower case, up to the first mark, without quotes before it."""
    return _BREAKS_A_WORD.split(word.lstrip("'").lstrip('"'), maxsplit=1)[0].lower()


ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_STAR_ITEM = re.compile(r"^[^\S\n]*+\*[^*].*", re.MULTILINE)
_DASH_ITEM = re.compile(r"^[^\S\n]*+-", re.MULTILINE)
_SINGLE, _DOUBLE = re.compile(r"\*([^\n*]*)\*"), re.compile(r"\*\*([^\n*]*)\*\*")


def exact_bullets(response: str, given: Arguments) -> bool:
    """Check the number of lines that begin with * or -; ** does not count."""
    count = len(_STAR_ITEM.findall(response)) + len(_DASH_ITEM.findall(response))
    return count == int(given["num_bullets"])


def one_of_the_answers(response: str, given: Arguments) -> bool:
    """Check that one of the three answers occurs."""
    return any(answer in response for answer in ANSWERS)


def enough_highlights(response: str, given: Arguments) -> bool:
    """Check the number of stretches between single or double asterisks on one line."""
    stretches = [*_SINGLE.findall(response), *_DOUBLE.findall(response)]
    return sum(bool(stretch.strip()) for stretch in stretches) >= int(given["num_highlights"])


def enough_sections(response: str, given: Arguments) -> bool:
    """Check the number of section words before a number."""
    count = sum(1 for _ in re.finditer(given["section_spliter"].strip() + r"\s?\d+", response))
    return count >= int(given["num_sections"])


def is_json(response: str, given: Arguments) -> bool:
    """Check that the response is JSON, in a code fence or not."""
    text = response.strip()
    for opening in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(opening)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def has_title(response: str, given: Arguments) -> bool:
    """Check that there is text between << and >> on one line."""
    for line in response.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and start + 3 <= end and line[start:end].lstrip("<").rstrip(">").strip():
            return True
    return False


_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
_BETWEEN = "******"


def enough_placeholders(response: str, given: Arguments) -> bool:
    """Check the number of pairs of square brackets on one line."""
    return sum(map(_brackets, response.split("\n"))) >= int(given["num_placeholders"])


def _brackets(line: str) -> int:
    count, start = 0, line.find("[")
    while start >= 0 and (end := line.find("]", start)) >= 0:
        count, start = count + 1, line.find("[", end)
    return count


def has_postscript(response: str, given: Arguments) -> bool:
    """Check that the marker of a postscript occurs anywhere."""
    marker = given["postscript_marker"].strip()
    return re.search(_POSTSCRIPTS.get(marker, marker.lower()), response.lower()) is not None


def two_responses(response: str, given: Arguments) -> bool:
    """Check that six asterisks separate two different answers; a further empty part may be first or last."""
    parts = [part.strip() for part in response.split(_BETWEEN)]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


def repeats_prompt(response: str, given: Arguments) -> bool:
    """Check that the response begins with the prompt, in any case."""
    return response.strip().lower().startswith(given["prompt_to_repeat"].strip().lower())


def ends_with(response: str, given: Arguments) -> bool:
    """Check that the response ends with the phrase, in any case, ignoring quotes after it."""
    return response.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower())


def is_quoted(response: str, given: Arguments) -> bool:
    """Check that the response begins and ends with a double quote."""
    text = response.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def has_no_comma(response: str, given: Arguments) -> bool:
    """Check that there is no comma."""
    return "," not in response


KINDS: Mapping[str, InstructionKind] = {
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
    "language:response_language": InstructionKind(check=is_in_language, arguments={"language": str}),
    "change_case:english_capital": InstructionKind(check=is_english_capital, repaired=is_capital_english),
    "change_case:english_lowercase": InstructionKind(check=is_english_lowercase),
    "change_case:capital_word_frequency": InstructionKind(
        check=enough_capital_words, arguments={"capital_frequency": int, "capital_relation": str}
    ),
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
        repaired=nth_nonblank_paragraph,
    ),
    "detectable_format:number_bullet_lists": InstructionKind(
        check=exact_bullets, arguments={"num_bullets": int}
    ),
    "detectable_format:constrained_response": InstructionKind(check=one_of_the_answers),
    "detectable_format:number_highlighted_sections": InstructionKind(
        check=enough_highlights, arguments={"num_highlights": int}
    ),
    "detectable_format:multiple_sections": InstructionKind(
        check=enough_sections, arguments={"section_spliter": str, "num_sections": int}
    ),
    "detectable_format:json_format": InstructionKind(check=is_json),
    "detectable_format:title": InstructionKind(check=has_title),
    "detectable_content:number_placeholders": InstructionKind(
        check=enough_placeholders, arguments={"num_placeholders": int}
    ),
    "detectable_content:postscript": InstructionKind(
        check=has_postscript, arguments={"postscript_marker": str}
    ),
    "combination:two_responses": InstructionKind(check=two_responses),
    "combination:repeat_prompt": InstructionKind(check=repeats_prompt, arguments={"prompt_to_repeat": str}),
    "startend:end_checker": InstructionKind(check=ends_with, arguments={"end_phrase": str}),
    "startend:quotation": InstructionKind(check=is_quoted),
    "punctuation:no_comma": InstructionKind(check=has_no_comma),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An instruction of a prompt: its kind and its arguments."""

    id: str
    arguments: Arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionResults:
    """The verdicts on a response for each instruction of a prompt, in order.

    Invariant: `strict` and `loose` are the original's verdicts; a strictly followed instruction is loosely
    followed.
    """

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    fixed: tuple[bool, ...]
    """strict, by the repaired checkers"""


def check_instructions(instructions: Sequence[Instruction], response: str) -> InstructionResults:
    """Judge a response. An empty one follows no instruction."""
    readings = loose_variants(response)
    strict, loose, fixed = [], [], []
    for instruction in instructions:
        kind = KINDS[instruction.id]
        strict.append(_follows(kind.check, response, instruction.arguments))
        loose.append(
            strict[-1] or any(_follows(kind.check, reading, instruction.arguments) for reading in readings)
        )
        fixed.append(
            _follows(kind.repaired, response, instruction.arguments) if kind.repaired else strict[-1]
        )
    return InstructionResults(strict=tuple(strict), loose=tuple(loose), fixed=tuple(fixed))


def loose_variants(response: str) -> list[str]:
    """Return 8 variants: unchanged, without first line, last line, or both; and these without asterisks."""
    lines = response.split("\n")
    cut = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    whole = [response, *cut]
    return [*whole, *(reading.replace("*", "") for reading in whole)]


def _follows(check: Check, response: str, arguments: Arguments) -> bool:
    return bool(response.strip()) and check(response, arguments)


def to_instructions(meta: Mapping[str, Any]) -> list[Instruction]:
    return [
        Instruction(id=name, arguments=arguments)
        for name, arguments in zip(meta["instruction_id_list"], meta["kwargs"], strict=True)
    ]
