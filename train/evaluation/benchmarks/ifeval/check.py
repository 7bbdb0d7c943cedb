"""What a kind of instruction is: which arguments it has, and when a response follows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Arguments = Mapping[str, Any]
"""An instruction's numbers and words, by the names of the published rows."""

Check = Callable[[str, Arguments], bool]
"""Whether a response follows an instruction. Pure, and linear in the response."""

AT_LEAST, LESS_THAN = "at least", "less than"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionKind:
    """One of the 25 kinds.

    Invariant: `check` gives the verdict of the original checker, its mistakes included; `repaired`, where
    there is one, gives what the instruction asks for.
    """

    check: Check
    arguments: Mapping[str, type] = field(default_factory=dict)
    """by name, all of them needed"""
    repaired: Check | None = None


def holds(count: int, relation: str, threshold: int) -> bool:
    """Whether a count is at least, or less than, the threshold."""
    return count < threshold if relation == LESS_THAN else count >= threshold
