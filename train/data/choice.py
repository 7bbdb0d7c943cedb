"""Whether a row is among those that a source's entry in the file asks for, and may be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocstar.train.data.build_config import SourceConfig
from rocstar.train.data.candidate import clipped
from rocstar.train.data.licences import forbids_commercial_use
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import field_of

_ABSENT: tuple[object, ...] = (None, "", False, [], {})


def refused_by_choice(
    row: Mapping[str, Any], source: SourceConfig, *, commercial: bool
) -> tuple[str, dict[str, Any]] | None:
    """The reason and its evidence; None for a row that is asked for."""
    for field, wanted in source.only.items():
        value = value_at(row, field)
        if value not in (wanted if isinstance(wanted, list) else [wanted]):
            return "not_selected", {"field": field, "value": clipped(str(value))}
    for field in source.without:
        if (value := value_at(row, field)) not in _ABSENT:
            return "not_selected", {"field": field, "value": clipped(str(value))}
    if commercial and (why := forbids_commercial_use(licence_of(row, source))):
        return "licence", {"licence": why}
    return None


def licence_of(row: Mapping[str, Any], source: SourceConfig) -> str:
    """The row's own licence, or that of its source."""
    own = value_at(row, source.licence_field) if source.licence_field else None
    return own if isinstance(own, str) and own.strip() else source.licence


def value_at(row: Mapping[str, Any], field: str) -> Any:
    """The value of a field, dots stepping into objects; None where there is none."""
    try:
        return field_of(row, field, "the row")
    except ConfigError:
        return None
