"""The result of reading one row: a candidate for the build, or a reason to drop it with its evidence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocstar.train.data.build_config import SourceConfig, forbids_commercial_use
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import field_of

SHOWN_CHARACTERS: Final = 300
_ABSENT: Final[tuple[object, ...]] = (None, "", False, [], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row that can be used, as it would be written."""

    row: str
    """The row's name in its source: its own id, or a hash of it."""
    id: str
    """Hash of the written row: the task id of a recipe."""
    key: bytes
    """Equal for copies (`words.conversation_key`)."""
    label: str
    """The answer, which copies of a problem must share; "" of a conversation."""
    problem: str
    """The text compared with evaluation sets."""
    body: Mapping[str, Any]
    licence: str
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """by filter"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A row that is left out."""

    row: str
    reason: str
    """One of funnel.REASONS."""
    evidence: Mapping[str, Any]
    shown: str = ""
    """The beginning of its text."""


def row_name(row: Any) -> str:
    """Return the row's id, or a hash of its content, independent of its position in the file."""
    given = row.get("id") if isinstance(row, Mapping) else None
    if isinstance(given, str | int) and not isinstance(given, bool):
        return str(given)
    text = json.dumps(row, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:16]


def clipped(text: str) -> str:
    """Return a text that is short enough for evidence."""
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def earlier(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an earlier build's decision on a row, if it has one."""
    provenance = row.get("provenance")
    return {"earlier": dict(provenance)} if isinstance(provenance, Mapping) else {}


def rejection_reason(
    row: Mapping[str, Any], source: SourceConfig, *, commercial: bool
) -> tuple[str, dict[str, Any]] | None:
    """Return why the source's entry excludes a row, with evidence; None if it includes it."""
    for name, wanted in source.only.items():
        value = value_at(row, name)
        if value not in (wanted if isinstance(wanted, list) else [wanted]):
            return "not_selected", {"field": name, "value": clipped(str(value))}
    for name in source.without:
        if (value := value_at(row, name)) not in _ABSENT:
            return "not_selected", {"field": name, "value": clipped(str(value))}
    if commercial and (why := forbids_commercial_use(licence_of(row, source))):
        return "licence", {"licence": why}
    return None


def licence_of(row: Mapping[str, Any], source: SourceConfig) -> str:
    """Return the licence of a row, or that of its source."""
    licence = value_at(row, source.licence_field) if source.licence_field else None
    return licence if isinstance(licence, str) and licence.strip() else source.licence


def value_at(row: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field, or None if it is absent. Dots step into objects."""
    try:
        return field_of(row, field, "the row")
    except ConfigError:
        return None
