"""Every field of the recipe with all that its declaration says of it."""

import inspect
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.section import FOR_EXPERTS, Unit

NAMED = "tasks.NAME"
"""The table of a data source, under which its fields are described once."""

_BOUNDS: Final = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_TYPES: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    Any: "anything",
    DataConfig: f"a table as [{NAMED}], or the NAME of one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDoc:
    """The documentation of a field."""

    name: str
    """Dotted; of a list's tables without the number: stages.steps."""
    type: str
    default: str
    """The default as TOML; "required", or "not set" for what may be left out."""
    bounds: str
    unit: str
    description: str
    expert: bool
    """Whether few recipes set it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionDoc:
    """A table of the recipe."""

    name: str
    description: str
    repeats: bool
    """Whether a recipe may have several: [[stages]]."""
    fields: tuple[FieldDoc, ...]

    @property
    def header(self) -> str:
        """The header as TOML writes it."""
        return f"[[{self.name}]]" if self.repeats else f"[{self.name}]"


def sections() -> list[SectionDoc]:
    """Every table of the recipe in its order, a data source's once."""
    return list(_sections(Recipe))


def surface() -> list[str]:
    """Every field as a dotted name, a data source's once; frozen by tests/config_surface.txt."""
    names = []
    for section in sections():
        prefix = "DATA" if section.name == NAMED else section.name
        for field in section.fields:
            last = field.name.rpartition(".")[2]
            names.append(f"{prefix}.{last}" + (" = DATA" if field.type == _TYPES[DataConfig] else ""))
    return names


def nested(annotation: Any) -> type[BaseModel] | None:
    """The table that a field holds, alone, in a list, by name, or not always."""
    options = [annotation, *getattr(annotation, "__args__", ())]
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _sections(model: type[BaseModel], prefix: str = "", *, repeats: bool = False) -> Iterator[SectionDoc]:
    """The table itself, if it has fields of its own, and the tables in it."""
    own: list[FieldDoc] = []
    inner: list[tuple[type[BaseModel], str, bool]] = []
    for name, field in model.model_fields.items():
        table = nested(field.annotation)
        if table is DataConfig and get_origin(field.annotation) is dict:
            inner.append((table, f"{prefix}{name}.NAME", False))
        elif table is None or table is DataConfig:
            own.append(_described(f"{prefix}{name}", field))
        else:
            inner.append((table, f"{prefix}{name}", get_origin(field.annotation) is list))
    if own:
        yield SectionDoc(
            name=prefix.removesuffix("."),
            description=inspect.cleandoc(model.__doc__ or ""),
            repeats=repeats,
            fields=tuple(own),
        )
    for table, name, is_list in inner:
        yield from _sections(table, f"{name}.", repeats=is_list)


def _described(name: str, field: FieldInfo) -> FieldDoc:
    marks = field.metadata
    bounds = [f"{sign} {getattr(mark, key)}" for mark in marks for key, sign in _BOUNDS.items() if hasattr(mark, key)]
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    absent = "required" if field.is_required() else "not set"
    return FieldDoc(
        name=name,
        type=_type(field.annotation),
        default=absent if value is None else json.dumps(value),
        bounds=", ".join(bounds),
        unit=next((mark.name for mark in marks if isinstance(mark, Unit)), ""),
        description=field.description or "",
        expert=FOR_EXPERTS in marks,
    )


def _type(annotation: Any) -> str:
    """A type in words."""
    inner = get_args(annotation)
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(json.dumps(value) for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(one) for one in inner if one is not type(None))
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return "table"
    return _TYPES[annotation]
