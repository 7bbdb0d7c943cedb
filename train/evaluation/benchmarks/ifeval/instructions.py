"""The 25 kinds of instructions: their arguments, their checks, and the verdict on a response.

response ──unchanged───────────────────────> strict, fixed
         ──8 variants, any may follow it───> loose
"""

import json
import re
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from rocstar.sandbox.extras import install_command
from rocstar.train.evaluation.benchmarks.ifeval.english_text import count_words, split_sentences, treebank_tokens
from rocstar.train.recipe.errors import ConfigError

Arguments = Mapping[str, Any]
"""An instruction's numbers and words, by the names of the published rows."""

Check = Callable[[str, Arguments], bool]
"""True if a response follows an instruction. Pure, and linear in the response."""

AT_LEAST, LESS_THAN = "at least", "less than"


@dataclass(frozen=True, slots=True)
class InstructionKind:
    """One of the 25 kinds.

    Invariant: `check` gives the verdict of the original checker, including its bugs; `repaired`, if set,
    gives the verdict that the instruction asks for.
    """

    check: Check
    arguments: Mapping[str, type]
    """by name, all required"""
    repaired: Check | None


def compare_count(count: int, relation: str, threshold: int) -> bool:
    """True if a count is at least, or less than, the threshold."""
    return count < threshold if relation == LESS_THAN else count >= threshold


def letter_occurs(response: str, given: Arguments) -> bool:
    """Check the number of occurrences of the letter.

    For a character outside the alphabet the original samples a letter for each verdict; this returns the
    verdict of the majority of the 26 letters.
    """
    letter = given["letter"].strip().lower()
    if letter in string.ascii_lowercase:
        return _occurs(letter, response, given)
    return 2 * sum(_occurs(drawn, response, given) for drawn in string.ascii_lowercase) > 26


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


_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_BREAKS_A_WORD = re.compile(r"[.,?!'\"]")


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
    return len(paragraphs) >= given["nth_paragraph"] and _begins_with(paragraphs, len(paragraphs), given, several=True)


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


def _brackets(line: str) -> int:
    count, start = 0, line.find("[")
    while start >= 0 and (end := line.find("]", start)) >= 0:
        count, start = count + 1, line.find("[", end)
    return count


def two_responses(response: str, given: Arguments) -> bool:
    """Check that six asterisks separate two different answers; a further empty part may be first or last."""
    parts = [part.strip() for part in response.split(_BETWEEN)]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


_FORMS: Mapping[str, type] = {"str": str, "int": int, "list": list}
_ARGUMENTS = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text(encoding="utf-8"))
_CHECKS: Mapping[str, Check] = {
    # Each keyword is a pattern, as in the original, and occurs in any case, also within longer words.
    "keywords:existence": lambda text, given: all(re.search(word, text, re.IGNORECASE) for word in given["keywords"]),
    "keywords:frequency": lambda text, given: compare_count(
        sum(1 for _ in re.finditer(given["keyword"].strip(), text, re.IGNORECASE)),
        given["relation"],
        given["frequency"],
    ),
    "keywords:forbidden_words": lambda text, given: (
        not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in given["forbidden_words"])
    ),
    "keywords:letter_frequency": letter_occurs,
    # A response in which no language is found passes.
    "language:response_language": lambda text, given: language(text) in (None, given["language"]),
    # Detectors support lower-case text; the original gives them the capital letters.
    "change_case:english_capital": lambda text, _: text.isupper() and language(text) in (None, ENGLISH),
    "change_case:english_lowercase": lambda text, _: text.islower() and language(text) in (None, ENGLISH),
    # Treebank tokens: DON'T has two.
    "change_case:capital_word_frequency": lambda text, given: compare_count(
        sum(token.isupper() for one in split_sentences(text) for token in treebank_tokens(one)),
        given["capital_relation"],
        given["capital_frequency"],
    ),
    "length_constraints:number_sentences": lambda text, given: compare_count(
        sum(1 for _ in split_sentences(text)), given["relation"], given["num_sentences"]
    ),
    "length_constraints:number_words": lambda text, given: compare_count(
        count_words(text), given["relation"], given["num_words"]
    ),
    "length_constraints:number_paragraphs": divided_paragraphs,
    "length_constraints:nth_paragraph_first_word": nth_paragraph,
    # Lines that begin with * or -; ** does not count.
    "detectable_format:number_bullet_lists": lambda text, given: (
        len(_STAR_ITEM.findall(text)) + len(_DASH_ITEM.findall(text)) == int(given["num_bullets"])
    ),
    "detectable_format:constrained_response": lambda text, _: any(answer in text for answer in ANSWERS),
    # Stretches between single or double asterisks on one line.
    "detectable_format:number_highlighted_sections": lambda text, given: (
        sum(bool(part.strip()) for part in [*_SINGLE.findall(text), *_DOUBLE.findall(text)])
        >= int(given["num_highlights"])
    ),
    # Section words before a number.
    "detectable_format:multiple_sections": lambda text, given: (
        sum(1 for _ in re.finditer(given["section_spliter"].strip() + r"\s?\d+", text)) >= int(given["num_sections"])
    ),
    "detectable_format:json_format": is_json,
    "detectable_format:title": has_title,
    # Pairs of square brackets on one line.
    "detectable_content:number_placeholders": lambda text, given: (
        sum(map(_brackets, text.split("\n"))) >= int(given["num_placeholders"])
    ),
    # The marker may occur anywhere.
    "detectable_content:postscript": lambda text, given: bool(
        re.search(
            _POSTSCRIPTS.get(given["postscript_marker"].strip(), given["postscript_marker"].strip().lower()),
            text.lower(),
        )
    ),
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": lambda text, given: (
        text.strip().lower().startswith(given["prompt_to_repeat"].strip().lower())
    ),
    # Quotes after the phrase are ignored.
    "startend:end_checker": lambda text, given: (
        text.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower())
    ),
    "startend:quotation": lambda text, _: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    "punctuation:no_comma": lambda text, _: "," not in text,
}
_REPAIRED: Mapping[str, Check] = {
    "keywords:letter_frequency": lambda text, given: _occurs(given["letter"].strip().lower(), text, given),
    "change_case:english_capital": lambda text, _: text.isupper() and language(text.lower()) in (None, ENGLISH),
    "length_constraints:nth_paragraph_first_word": nth_nonblank_paragraph,
}
KINDS: Mapping[str, InstructionKind] = {
    name: InstructionKind(check, {key: _FORMS[form] for key, form in _ARGUMENTS[name].items()}, _REPAIRED.get(name))
    for name, check in _CHECKS.items()
}


Instruction = tuple[str, Arguments]
"""The kind and the arguments of an instruction."""


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
    for name, arguments in instructions:
        kind = KINDS[name]
        strict.append(_follows(kind.check, response, arguments))
        loose.append(strict[-1] or any(_follows(kind.check, reading, arguments) for reading in readings))
        fixed.append(_follows(kind.repaired, response, arguments) if kind.repaired else strict[-1])
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
    return list(zip(meta["instruction_id_list"], meta["kwargs"], strict=True))
