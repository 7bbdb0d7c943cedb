"""Turn a row into a candidate for the build, or drop it with one reason and its evidence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

SHOWN_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row that can be used, as it would be written."""

    row: str
    """The row's name in its source: its own id, or a hash of it."""
    id: str
    """Hash of the written row: the task id of a recipe."""
    key: bytes
    """Equal for rows that are one (same_problem.py)."""
    label: str
    """The answer, which copies of a problem must share; "" of a conversation."""
    problem: str
    """The text compared with evaluation sets."""
    body: Mapping[str, Any]
    licence: str
    told: Mapping[str, Any] = field(default_factory=dict)
    """The decisions on it, by filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A row that is left out."""

    row: str
    reason: str
    """One of funnel.REASONS."""
    evidence: Mapping[str, Any]
    shown: str = ""
    """The beginning of its text."""


class RowReader(Protocol):
    """Reads rows of one source."""

    def read(self, row: Any) -> Candidate | Dropped:
        """Judge one row by itself."""
        ...


def row_name(row: Any) -> str:
    """Return the row's id, or a hash of its content, independent of its position in the file."""
    given = row.get("id") if isinstance(row, Mapping) else None
    if isinstance(given, str | int) and not isinstance(given, bool):
        return str(given)
    text = json.dumps(row, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]


def clipped(text: str) -> str:
    """A text short enough for evidence."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def earlier(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an earlier build's decision on a row, if it has one."""
    told = row.get("provenance")
    return {"earlier": dict(told)} if isinstance(told, Mapping) else {}
