"""What the policy is shown of the functions it may call. Pure.

function descriptions --> JSON schemas --> the prompt, as the chat template shows tools
                                       --> the user's message that gives functions which were held back
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rocstar.train.evaluation.benchmarks.bfcl.calls import Language

MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
"""What the user says when functions that were held back are given (BFCL v3, `default_prompts.py`)."""

_SCHEMA_TYPES = {
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "dict": "object",
    "any": "string",
}
_HINTS = {
    Language.python: "Python 3",
    Language.java: "Java 8 SDK",
    Language.javascript: "JavaScript",
}
_NAMES = {Language.java: "Java", Language.javascript: "JavaScript"}


def schemas(functions: Iterable[Mapping[str, Any]], language: Language) -> list[dict[str, Any]]:
    """The functions as chat templates show tools."""
    return [{"type": "function", "function": _schema(function, language)} for function in functions]


def more_functions(tools: Sequence[Mapping[str, Any]]) -> str:
    """The user's message that gives further functions."""
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    return "\n".join(["<tools>", *lines, "</tools>", MORE_FUNCTIONS])


def _schema(function: Mapping[str, Any], language: Language) -> dict[str, Any]:
    hint = f" Note that the provided function is in {_HINTS[language]} syntax."
    parameters = function["parameters"]
    properties = {
        name: _property(described) if language is Language.python else _literal(described, language)
        for name, described in parameters["properties"].items()
    }
    return {
        **function,
        "description": function["description"] + hint,
        "parameters": {**parameters, "type": "object", "properties": properties},
    }


def _property(described: Mapping[str, Any]) -> dict[str, Any]:
    """One parameter with the types of JSON schema, in whatever depth."""
    shown = dict(described)
    kind = described.get("type", "any")
    shown["type"] = _SCHEMA_TYPES.get(kind, kind)
    if isinstance(inner := described.get("properties"), Mapping):
        shown["properties"] = {name: _property(one) for name, one in inner.items()}
    if isinstance(item := described.get("items"), Mapping):
        shown["items"] = _property(item)
    return shown


def _literal(described: Mapping[str, Any], language: Language) -> dict[str, Any]:
    """One parameter that is written as the text of a literal."""
    kind, name = described["type"], _NAMES[language]
    shown = {key: value for key, value in described.items() if key not in ("items", "properties")}
    if kind == "any":
        said = f" This parameter can be of any type of {name} object in string representation."
    else:
        said = f" This is {name} {kind} type parameter in string representation."
    if "items" in described:
        item = described["items"]["type"]
        said += f" The list elements are of type {item}; they are not in string representation."
    if "properties" in described:
        entries = json.dumps(described["properties"])
        said += (
            " The dictionary entries have the following schema; they are not in string representation. "
            f"{entries}"
        )
    return {**shown, "type": "string", "description": described.get("description", "") + said}
