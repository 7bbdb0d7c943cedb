"""The rule for one answer: whether the calls that the policy wrote are the ones that were due. Pure.

    functions (described), calls (name, arguments), due (name -> possible values by parameter) -> bool

Right is a call with the due name, all required parameters, none that is unknown, and of every parameter a
value of its type that is among the possible ones; a parameter may be left out only where "" is possible.
Several calls are matched greedily in the order in which they are due, whatever the order in which they were
written.

Source: BFCL v3 (Apache-2.0), `ast_checker.py` of bfcl-eval 2025.8.6.2. Scores are compared with published
ones, so its corners are kept: `any` is a string, a list's elements are checked one level deep, True equals 1
inside lists and objects, and a value of the type that the possible values have is accepted beside the
described type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from rocstar.train.evaluation.benchmarks.bfcl.literals import java_value, javascript_value

Call: TypeAlias = tuple[str, Mapping[str, Any]]
"""Name and arguments."""
Function: TypeAlias = Mapping[str, Any]
"""`name` and `parameters`: {`properties`: {parameter: {`type`, ..}}, `required`: [..]}."""
Due: TypeAlias = Mapping[str, Mapping[str, Sequence[Any]]]
"""One call: its name to its parameters with their possible values."""


class Language(StrEnum):
    """How arguments are written: as JSON values, or as the text of literals."""

    python = "python"
    java = "java"
    javascript = "javascript"


_TYPES: Mapping[Language, Mapping[str, type]] = {
    Language.python: {
        "string": str,
        "integer": int,
        "float": float,
        "boolean": bool,
        "array": list,
        "tuple": list,
        "dict": dict,
        "any": str,
    },
    Language.java: {
        "byte": int,
        "short": int,
        "integer": int,
        "long": int,
        "float": float,
        "double": float,
        "boolean": bool,
        "char": str,
        "String": str,
        "any": str,
        "Array": list,
        "ArrayList": list,
        "HashMap": dict,
    },
    Language.javascript: {
        "String": str,
        "integer": int,
        "float": float,
        "Bigint": int,
        "Boolean": bool,
        "dict": dict,
        "array": list,
        "any": str,
    },
}
_WITH_ITEMS = {
    Language.python: {"array", "tuple"},
    Language.java: {"Array", "ArrayList"},
    Language.javascript: {"array"},
}
_IGNORED = re.compile(r"[ ,./\-_*^]")


def calls_are_due(
    functions: Sequence[Function],
    calls: Sequence[Call],
    due: Sequence[Due],
    *,
    language: Language = Language.python,
) -> bool:
    """Whether `calls` are the ones in `due`, in any order."""
    if len(calls) != len(due):
        return False
    left = list(calls)
    for one in due:
        function = described_as(functions, next(iter(one)))
        found = next((k for k, call in enumerate(left) if _is_due(function, call, one, language)), None)
        if found is None:
            return False
        del left[found]
    return True


def check_types(function: Function, language: Language) -> None:
    """See that the rule knows the type of every parameter.

    Raises:
        KeyError: it knows one not, or a collection does not say what it holds.
    """
    for described in function["parameters"]["properties"].values():
        _types_of(described, language)


def _types_of(described: Mapping[str, Any], language: Language) -> tuple[type, str | None, type | None]:
    """The type of a parameter; of a collection, the name and the type of what it holds."""
    kind = described["type"]
    item = described["items"]["type"] if kind in _WITH_ITEMS[language] else None
    return _TYPES[language][kind], item, None if item is None else _TYPES[language][item]


def described_as(functions: Sequence[Function], name: str) -> Function:
    """The description of the function that is due; of several entries the first."""
    return next((f for f in functions if f["name"] == name), functions[0])


def _is_due(function: Function, call: Call, due: Due, language: Language) -> bool:
    name, arguments = call
    possible = next(iter(due.values()))
    described = function["parameters"]["properties"]
    if name != function["name"] or any(p not in arguments for p in function["parameters"]["required"]):
        return False
    for parameter, value in arguments.items():
        if parameter not in described or parameter not in possible:
            return False
        if not _is_possible(described[parameter], value, possible[parameter], language):
            return False
    return all(parameter in arguments or "" in values for parameter, values in possible.items())


def _is_possible(
    described: Mapping[str, Any], value: Any, possible: Sequence[Any], language: Language
) -> bool:
    """Whether a value has its type and is among the possible ones."""
    expected, item, item_type = _types_of(described, language)
    kind = described["type"]
    if language is not Language.python:
        if type(value) is not str:
            return False
        value = (java_value if language is Language.java else javascript_value)(value, kind, item)
    elif kind == "float" and type(value) is int:
        value = float(value)
    fits, is_plain = _fits(value, possible, expected, item_type)
    if not fits:
        return False
    if is_plain:
        return value in possible
    if expected is dict:
        return any(_same_object(value, one) for one in possible if one != "")
    if expected is list and item_type is dict:
        return any(_same_objects(value, one) for one in possible)
    if expected is str:
        return _standard(value) in [_standard(one) for one in possible if type(one) is str]
    if expected is list:
        return [_standard(v) for v in value] in [[_standard(v) for v in one] for one in possible]
    return value in possible


def _fits(value: Any, possible: Sequence[Any], expected: type, item: type | None) -> tuple[bool, bool]:
    """Whether the type is right, and whether the value is then compared as it stands.

    It is where the possible values are of another type than the described one: the benchmark takes such a
    value for the name of a variable.
    """
    of_possible = next((type(one) for one in possible if one != ""), None)
    is_variable = of_possible is not None and of_possible is not expected
    if type(value) is expected:
        fits = item is None or any(_elements_fit(value, one, item) for one in possible)
        return fits, is_variable
    if of_possible is not None and type(value) is of_possible:
        return True, True
    return False, False


def _elements_fit(value: Any, possible: Any, item: type) -> bool:
    """Whether every element is of the described type, or of that of the possible list's elements."""
    if type(possible) is not list:
        return True
    return all(_fits(element, possible, item, None)[0] for element in value)


def _same_objects(values: Sequence[Mapping[str, Any]], possible: Sequence[Any]) -> bool:
    return len(values) == len(possible) and all(
        one != "" and _same_object(value, one) for value, one in zip(values, possible, strict=True)
    )


def _same_object(value: Mapping[str, Any], possible: Mapping[str, Sequence[Any]]) -> bool:
    """Whether an object has possible values under possible keys; one is left out only where "" is
    possible."""
    return all(
        key in possible and _standard(inner) in [_standard(one) for one in possible[key]]
        for key, inner in value.items()
    ) and all(key in value or "" in values for key, values in possible.items())


def _standard(value: Any) -> Any:
    """A string without spaces and ,./-_*^, in lower case and with double quotes; any other value as it is."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if type(value) is str else value
