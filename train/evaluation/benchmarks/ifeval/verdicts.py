"""Which instructions of a prompt a response follows: strictly, loosely, and by the repaired checkers.

response ──as it is──────────────────────────> strict, fixed
         ──8 ways to read it, any will do────> loose
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocstar.train.evaluation.benchmarks.ifeval import formats, keywords, languages, lengths, shapes
from rocstar.train.evaluation.benchmarks.ifeval.check import Arguments, Check, InstructionKind

KINDS: Mapping[str, InstructionKind] = {
    **keywords.KINDS,
    **languages.KINDS,
    **lengths.KINDS,
    **formats.KINDS,
    **shapes.KINDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An instruction of a prompt: its kind and its arguments."""

    id: str
    arguments: Arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Of each instruction of a prompt, in order, whether the response follows it.

    Invariant: `strict` and `loose` are the original's verdicts; strictly followed is loosely followed.
    """

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    fixed: tuple[bool, ...]
    """strictly, by the checkers that were repaired"""


def followed(instructions: Sequence[Instruction], response: str) -> Followed:
    """Judge a response. An empty one follows nothing."""
    readings = readings_of(response)
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
    return Followed(strict=tuple(strict), loose=tuple(loose), fixed=tuple(fixed))


def readings_of(response: str) -> list[str]:
    """Return the 8 readings: whole, without first line, last line, or both; and these without asterisks."""
    lines = response.split("\n")
    cut = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    whole = [response, *cut]
    return [*whole, *(reading.replace("*", "") for reading in whole)]


def _follows(check: Check, response: str, arguments: Arguments) -> bool:
    return bool(response.strip()) and check(response, arguments)


def instructions_of(meta: Mapping[str, Any]) -> list[Instruction]:
    """Return the instructions of a task's `meta`."""
    return [
        Instruction(id=name, arguments=arguments)
        for name, arguments in zip(meta["instruction_id_list"], meta["kwargs"], strict=True)
    ]
