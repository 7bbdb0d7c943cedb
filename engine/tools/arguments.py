"""Whether a schema is one, and arguments fit it: JSON Schema, as chat templates show it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_SHOWN_CHARS = 300
"""The length of a problem's text at most: it repeats the value, and the policy wrote that."""


def check_parameters(parameters: Any) -> str | None:
    """Return the error of the schema of a tool's arguments; None if it is valid."""
    from jsonschema import (  # only here: importing it takes a tenth of a second
        Draft202012Validator,
        SchemaError,
    )

    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        return "it is no JSON schema of an object; give {'type': 'object', 'properties': {...}}"
    try:
        json.dumps(parameters, allow_nan=False)
        Draft202012Validator.check_schema(parameters)
    except (TypeError, ValueError) as error:
        return f"it cannot be written as JSON: {error}"
    except SchemaError as error:
        return f"it is no JSON schema: {error.message}"
    return None


def check_arguments(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """Return the error of a call's arguments in one sentence; None if they are valid."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    for where, text in _texts(arguments, ""):
        if problem := check_text(where, text):
            return problem
    error = best_match(Draft202012Validator(parameters).iter_errors(arguments))
    if error is None:
        return None
    where, what = ".".join(str(part) for part in error.absolute_path), error.message[:MAX_SHOWN_CHARS]
    return f"Argument {where!r}: {what}" if where else what


def check_text(field: str, text: str) -> str | None:
    """Why a text can be no argument; None where it can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"Argument {field!r} holds a lone surrogate, which is not text"
    return None


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield every string inside, keys of objects too, with the path of its field."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield where or "", key
            yield from _texts(item, where or key)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, where)
