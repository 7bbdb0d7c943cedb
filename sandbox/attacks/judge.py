"""Compares the results of an attack program with the expected ones."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rocstar.sandbox.attacks.catalogue import Part, Program

VACUOUS = (
    *("ModuleNotFoundError", "ImportError", "NameError", "SyntaxError", "AttributeError", "TypeError"),
    *("command not found", "syntax error"),
)
"""Errors that mean that the attack did not run: a failure of the suite, never a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """status: as in `ExecResult`, or `lost`, `refused` (a branch), `failed` (a SandboxError), `hung`."""

    status: str
    text: str
    stdout: str = ""
    value: str | None = None
    truncated: bool = False


def judge(program: Program, results: Sequence[PartResult]) -> list[str]:
    """Return the differences from the expected results, or []."""
    problems: list[str] = []
    parts = [part for part in program.parts if part.kind != "pause"]
    for number, (part, result) in enumerate(zip(parts, results, strict=True), 1):
        problems += [f"part {number}: {problem}" for problem in judge_part(part, result)]
    if program.compare and not problems:
        one, other = [result.stdout.split() for result in results if result.stdout][-2:]
        # Words without a digit are labels; each drawn number is compared separately.
        same = [a == b for a, b in zip(one, other, strict=True) if re.search(r"\d", a + b)]
        if not same or any(equal != (program.compare == "same") for equal in same):
            problems.append(f"the drawn numbers should be {program.compare}: {one} {other}")
    return problems


def judge_part(part: Part, result: PartResult) -> list[str]:
    problems = []
    excerpt = result.text if len(result.text) <= 600 else result.text[:300] + " ... " + result.text[-300:]
    if result.status not in part.expect:
        problems.append(f"status {result.status}, expected {' or '.join(sorted(part.expect))}: {excerpt!r}")
    elif not part.output.search(result.text):
        problems.append(f"the output does not match {part.output.pattern!r}: {excerpt!r}")
    if "BREACH" in result.text:
        problems.append(f"breach: {excerpt!r}")
    if part.forbid is not None and part.forbid.search(result.text):
        problems.append(f"the output matches {part.forbid.pattern!r}: {excerpt!r}")
    for word in VACUOUS:
        if word in result.text and word != part.may_raise:
            problems.append(f"the attack did not run: {excerpt!r}")
    if part.no_value and result.value is not None:
        problems.append(f"a value appeared: {result.value[:100]!r}")
    if part.no_truncation and result.truncated:
        problems.append("the output is marked as truncated")
    return problems
