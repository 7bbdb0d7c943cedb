"""One line for an error of a recipe: field, value, reason and fix; and the field that a wrong name means."""

import json
import re
import shlex
import tomllib
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import BaseModel

from rocstar.sandbox.command_line import closest, suggest
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.fields import nested, surface

PROGRAMS: Final = {"trl": "TRL", "verl": "verl", "prime_rl": "prime-rl", "also": "other programs"}
"""The columns of terms.toml, and their names."""


@cache
def terms() -> list[dict[str, Any]]:
    """Return the fields of other programs, with ours (terms.toml)."""
    text = Path(__file__).with_name("terms.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text)["term"])


_KINDS: Final = {
    "float": "a number", "finite": "a finite number", "int": "a whole number", "bool": "true or false",
    "string": "a text", "list": "a list", "dict": "a table", "model": "a table",
}  # fmt: skip
"""The expected kind of a value, by the first word of pydantic's type of error."""
_BOUNDS: Final = {
    "greater_than": "is not above {gt:,.12g}", "greater_than_equal": "is below {ge:,.12g}",
    "less_than": "is not below {lt:,.12g}", "less_than_equal": "is above {le:,.12g}",
}  # fmt: skip


def explain(error: Any, model: type[BaseModel] = Recipe, *, is_option: bool = False) -> str:
    """Return one pydantic error as field, value and reason, and for an unknown key the nearest one.

    `is_option`: the field was set on the command line.
    """
    union = ("int", "float", "str", "bool")  # pydantic adds the types that it tried
    parts = [str(part) for part in error["loc"] if part not in union and "[" not in str(part)]
    location, value, kind = ".".join(parts) or "recipe", error.get("input"), error["type"]
    if error["type"] == "extra_forbidden":
        while len(error["loc"]) == 1 and isinstance(value, dict) and len(value) == 1:
            ((inner, value),) = value.items()
            location = f"{location}.{inner}"
        return f"unknown key {location!r}; {find_meant(location, model, lists=True)}"
    if error["type"] == "missing":
        return f"{location} is missing"
    shown = "" if isinstance(value, dict | list) or kind == "value_error" else f" = {value!r}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return f"{location}{shown} is not known; {suggest(str(value), choices)}"
    wanted = _KINDS.get(kind.partition("_")[0])
    reason = _BOUNDS.get(kind) or (f"is not {wanted}" if wanted else "")
    if not reason:
        return f"{location}{shown}: {error['msg'].removeprefix('Value error, ')}"
    reason = reason.format(**error.get("ctx", {}))
    if kind == "list_type" and shown:
        one = json.dumps([value])
        reason += f"; write --{location}={shlex.quote(one)}" if is_option else f"; write {location} = {one}"
    return f"{location}{shown} {reason}"


def find_meant(name: str, model: type[BaseModel] = Recipe, *, lists: bool = False) -> str:
    """Return the field that an unknown name means, as a sentence: a field of another program, of another
    section, or a similar one.

    If there is none, return "", or with `lists` the fields of its section.
    """
    name = name.replace("-", "_").lower()
    prefix, dot, last = name.rpartition(".")
    section, known = _section_of(name, model)
    listed = surface() if model is Recipe else []
    fields = [field.removesuffix(" = DATA") for field in listed if not field.startswith("DATA.")]
    fields += sorted({field.rpartition(".")[0] for field in fields if field.count(".") > 1})
    meant = [field for field in fields if field.rpartition(".")[2] == last]
    if found := _term_of(name, section) if listed else None:
        term, foreign = found
        ours = term.get("ours", [])
        if not meant or section in {field.rpartition(".")[0] for field in ours}:
            care = f": {term['care']}" if "care" in term else ""
            is_ours = f"{foreign} is {' and '.join(ours)}" if ours else f"rocstar has no field for {foreign}"
            return is_ours + care
        meant += [field for field in ours if field not in meant]
    if not meant and (near := closest(last, known)):
        meant = [prefix + dot + near]
    if near := closest(name, fields) if not known or not meant else "":
        meant = [near]
    if meant:
        return f"did you mean {' or '.join(map(repr, meant))}?"
    where = f"the fields of {section}" if section and known else "the sections"
    return f"{where} are {', '.join(known or model.model_fields)}" if lists else ""


def _term_of(name: str, section: str) -> tuple[dict[str, Any], str] | None:
    """Return the term with the name of most equal last parts, one of this section first; and whose it is."""
    backwards = name.split(".")[::-1]
    best, found = (0, False), None
    for term in terms():
        is_here = section in {field.rpartition(".")[0] for field in term.get("ours", ())}
        for column, program in PROGRAMS.items():
            for one in term.get(column, ()):
                pairs = zip(one.split(".")[::-1], backwards, strict=False)
                equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                if equal and (equal, is_here) > best:
                    best, found = (equal, is_here), (term, f"{backwards[0]!r} of {program}")
    return found


def _section_of(name: str, model: type[BaseModel]) -> tuple[str, list[str]]:
    """Return the section of a field without the numbers of tables, and its fields; none if it is unknown."""
    parts = [part for part in name.split(".")[:-1] if not part.isdecimal()]
    section, rest = ".".join(parts), iter(parts)
    for part in rest:
        field = model.model_fields.get(part)
        table = nested(field.annotation) if field else None
        # The names of the tables in a dict are the user's.
        if field is None or table is None or (get_origin(field.annotation) is dict and not next(rest, "")):
            return section, []
        model = table
    return section, list(model.model_fields)
