"""How a response is laid out: lists, highlights, sections, a title, JSON, one of three answers."""

from __future__ import annotations

import json
import re

from rocstar.train.evaluation.benchmarks.ifeval.check import Arguments, InstructionKind

ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_STAR_ITEM = re.compile(r"^[^\S\n]*+\*[^*].*", re.MULTILINE)
_DASH_ITEM = re.compile(r"^[^\S\n]*+-", re.MULTILINE)
_SINGLE, _DOUBLE = re.compile(r"\*([^\n*]*)\*"), re.compile(r"\*\*([^\n*]*)\*\*")


def exact_bullets(response: str, given: Arguments) -> bool:
    """Whether exactly so many lines begin with * or -; ** begins none."""
    count = len(_STAR_ITEM.findall(response)) + len(_DASH_ITEM.findall(response))
    return count == int(given["num_bullets"])


def one_of_the_answers(response: str, given: Arguments) -> bool:
    """Whether one of the three answers occurs."""
    return any(answer in response for answer in ANSWERS)


def enough_highlights(response: str, given: Arguments) -> bool:
    """Whether enough stretches stand between single or double asterisks on one line."""
    stretches = [*_SINGLE.findall(response), *_DOUBLE.findall(response)]
    return sum(bool(stretch.strip()) for stretch in stretches) >= int(given["num_highlights"])


def enough_sections(response: str, given: Arguments) -> bool:
    """Whether the word that begins a section stands before a number often enough."""
    count = sum(1 for _ in re.finditer(given["section_spliter"].strip() + r"\s?\d+", response))
    return count >= int(given["num_sections"])


def is_json(response: str, given: Arguments) -> bool:
    """Whether the response is JSON, in a code fence or not."""
    text = response.strip()
    for opening in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(opening)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def has_title(response: str, given: Arguments) -> bool:
    """Whether something stands between << and >> on one line."""
    for line in response.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and start + 3 <= end and line[start:end].lstrip("<").rstrip(">").strip():
            return True
    return False


KINDS = {
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
}
