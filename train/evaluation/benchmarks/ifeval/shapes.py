"""What a response is made of: placeholders, postscript, two answers, the prompt, an end, quotes, no comma."""

from __future__ import annotations

import re

from rocstar.train.evaluation.benchmarks.ifeval.check import Arguments, InstructionKind

_POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
_BETWEEN = "******"


def enough_placeholders(response: str, given: Arguments) -> bool:
    """Whether there are enough pairs of square brackets on one line."""
    return sum(map(_brackets, response.split("\n"))) >= int(given["num_placeholders"])


def _brackets(line: str) -> int:
    count, start = 0, line.find("[")
    while start >= 0 and (end := line.find("]", start)) >= 0:
        count, start = count + 1, line.find("[", end)
    return count


def has_postscript(response: str, given: Arguments) -> bool:
    """Whether the marker of a postscript occurs, wherever."""
    marker = given["postscript_marker"].strip()
    return re.search(_POSTSCRIPTS.get(marker, marker.lower()), response.lower()) is not None


def two_responses(response: str, given: Arguments) -> bool:
    """Whether six asterisks part two answers that differ; a further empty part may be first or last."""
    parts = [part.strip() for part in response.split(_BETWEEN)]
    answers = [part for part in parts if part]
    return all(parts[1:-1]) and len(answers) == 2 and answers[0] != answers[1]


def repeats_prompt(response: str, given: Arguments) -> bool:
    """Whether the response begins with the prompt, in any case."""
    return response.strip().lower().startswith(given["prompt_to_repeat"].strip().lower())


def ends_with(response: str, given: Arguments) -> bool:
    """Whether the response ends with the phrase, in any case, quotes behind it aside."""
    return response.strip().strip('"').lower().endswith(given["end_phrase"].strip().lower())


def is_quoted(response: str, given: Arguments) -> bool:
    """Whether the response begins and ends with a double quote."""
    text = response.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def has_no_comma(response: str, given: Arguments) -> bool:
    """Whether there is no comma."""
    return "," not in response


KINDS = {
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
