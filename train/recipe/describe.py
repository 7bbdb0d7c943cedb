"""`rocstar recipe`: the documentation of the fields as a short table, in full, as JSON, and as a page."""

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from rocstar.train.recipe.errors import ConfigError
from rocstar.train.recipe.explain import find_meant
from rocstar.train.recipe.fields import NAMED, FieldDoc, SectionDoc, sections

WIDTH: Final = 110
PAGE: Final = "docs/reference/recipe.md"


def short_table(*, experts: bool = False) -> str:
    """Every section with its everyday fields, a line or two each; those of experts on demand."""
    blocks = []
    for section in sections():
        shown = [field for field in section.fields if experts or not field.expert]
        if shown:
            blocks.append("\n".join([section.header, *_rows(shown)]))
    every = [field for section in sections() for field in section.fields]
    more = sum(field.expert for field in every)
    left_out = "" if experts else f"{more} more for experts: --all. "
    foot = f"{left_out}One in full: `rocstar recipe rl.lr`, or a section: `rocstar recipe rl`."
    return "\n\n".join([*blocks, foot])


def in_full(name: str) -> str:
    """A field, or every field of a section.

    Raises:
        ConfigError: the recipe has nothing of this name.
    """
    section, fields = find_fields(name)
    lines = []
    if len(fields) > 1:
        lines = [section.header, *textwrap.wrap(section.description, WIDTH), ""]
    return "\n".join([*lines, "\n\n".join(map(_block, fields))])


def as_json(name: str | None) -> str:
    """All fields, or those of a name, as a JSON list."""
    fields = [f for section in sections() for f in section.fields] if name is None else find_fields(name)[1]
    return json.dumps([asdict(field) for field in fields])


def find_fields(name: str) -> tuple[SectionDoc, list[FieldDoc]]:
    """Return the section of this name with all its fields, or the one with this field.

    A number in the name is a stage's or a callback's; a field of a data source belongs to the task table.

    Raises:
        ConfigError: the name is unknown.
    """
    known = sections()
    wanted = _plain(name, known)
    for section in known:
        if section.name == wanted:
            return section, list(section.fields)
        if found := [field for field in section.fields if field.name == wanted]:
            return section, found
    inside = [section for section in known if section.name.startswith(wanted + ".")]
    if not inside:
        raise ConfigError(f"{name!r} is not a field of the recipe; {find_meant(name, lists=True)}")
    return inside[0], [field for section in inside for field in section.fields]


def _plain(name: str, known: Sequence[SectionDoc]) -> str:
    """The name under which a field is described."""
    plain = re.sub(r"\.\d+(?=\.|$)", "", name)
    places = [field.name for section in known for field in section.fields if NAMED in field.type]
    place = next((place for place in places if plain.startswith(place + ".")), None)
    return plain if place is None else NAMED + plain.removeprefix(place)


def _rows(fields: Sequence[FieldDoc]) -> Iterator[str]:
    """Format a field: name, default and unit on the left, meaning on the right."""
    for field in fields:
        left = f"  {field.name.rpartition('.')[2]} = {field.default}"
        unit = f" [{field.unit}]" if field.unit else ""
        text = field.description + unit
        yield from textwrap.wrap(
            text, WIDTH, initial_indent=f"{left:<40} ", subsequent_indent=" " * 41, break_on_hyphens=False
        )


def _block(field: FieldDoc) -> str:
    facts = {
        "default": field.default,
        "type": field.type,
        "unit": field.unit,
        "bounds": field.bounds,
        "for": "experts: few recipes set it" if field.expert else "",
    }
    lines = textwrap.wrap(
        field.description, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return "\n".join([field.name, *lines, *(f"  {key:<8} {value}" for key, value in facts.items() if value)])


def markdown() -> str:
    """The page docs/reference/recipe.md: a table for each section, its everyday fields first and bold."""
    lines = [
        "# The fields of a recipe",
        "",
        "Made by `rocstar recipe --markdown` from the declarations in `train/recipe/`. One field in full:",
        "`rocstar recipe rl.lr`.",
        "",
        "A recipe is TOML. A field is set in its table, or on the command line: `--rl.lr=1e-3`,",
        "`--stages.0.steps=2`. The run's `config.toml` has every field with its value.",
        "",
        "**Bold** fields are for every recipe; the others are for experts.",
    ]
    for section in filter(lambda section: section.fields, sections()):
        lines += ["", f"## `{section.header}`", section.description, ""]
        lines += ["| field | default | values | |", "|---|---|---|---|"]
        for field in sorted(section.fields, key=lambda field: field.expert):
            name = f"`{field.name.rpartition('.')[2]}`"
            name = name if field.expert else f"**{name}**"
            unit = f"{field.type}: {field.unit}" if field.unit else field.type
            values = ", ".join(part for part in (unit, field.bounds) if part)
            lines.append(f"| {name} | {field.default} | {values} | {field.description} |")
    return "\n".join([*lines, ""])
