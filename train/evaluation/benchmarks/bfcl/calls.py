"""The rule for one answer: compare the policy's calls with the due ones. Pure.

    functions (described), calls (name, arguments), due (name -> possible values by parameter) -> bool
    "new int[]{1, 2}" --Array of integer--> [1, 2]        "3L" --long--> 3        "x" --long--> "x"

A correct call has the due name, all required parameters, no unknown parameter, and for each parameter a value
of its type among the possible ones; a parameter may be omitted only if "" is possible. Several calls are
matched greedily in the order of the due ones, in any written order.

In the Java and JavaScript categories each argument is the text of a literal. A text that is no literal of its
type stays text, and then fails the rule's type or value. Elements of a collection are split at every comma,
also in strings.

Source: BFCL v3 (Apache-2.0), `ast_checker.py` and type converters of bfcl-eval 2025.8.6.2. Scores must be
comparable with published ones, so its edge cases are kept: `any` is a string, a list's elements are checked
one level deep, True equals 1 inside lists and objects, and a value of the type of the possible values is
accepted besides the described type.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

Call: TypeAlias = tuple[str, Mapping[str, Any]]
"""Name and arguments."""
Function: TypeAlias = Mapping[str, Any]
"""`name` and `parameters`: {`properties`: {parameter: {`type`, ..}}, `required`: [..]}."""
Due: TypeAlias = Mapping[str, Mapping[str, Sequence[Any]]]
"""One call: its name to its parameters with their possible values."""


class Language(StrEnum):
    """The form of arguments: JSON values, or literals as text."""

    python = "python"
    java = "java"
    javascript = "javascript"


TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
_PLAIN = {kind.__name__: kind for kind in (str, list, int, float, bool, dict)}
_TYPES = {
    Language(language): {name: _PLAIN[kind] for name, kind in kinds.items()}
    for language, kinds in TABLES["types"].items()
}
_IGNORED = re.compile(r"[ ,./\-_*^]")


def match_due_calls(
    functions: Sequence[Function], calls: Sequence[Call], due: Sequence[Due], *, language: Language = Language.python
) -> bool:
    """True if `calls` are the ones in `due`, in any order."""
    if len(calls) != len(due):
        return False
    left = list(calls)
    for one in due:
        function = find_function(functions, next(iter(one)))
        found = next((k for k, call in enumerate(left) if _is_due(function, call, one, language)), None)
        if found is None:
            return False
        del left[found]
    return True


def types_of(described: Mapping[str, Any], language: Language) -> tuple[type, str | None, type | None]:
    """Return the type of a parameter; for a collection also the name and the type of its items.

    Raises:
        KeyError: the type is unknown, or a collection has no item type.
    """
    kind = described["type"]
    item = described["items"]["type"] if _TYPES[language][kind] is list else None
    return _TYPES[language][kind], item, None if item is None else _TYPES[language][item]


def find_function(functions: Sequence[Function], name: str) -> Function:
    """Return the description of the due function, the first of several."""
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


def _is_possible(described: Mapping[str, Any], value: Any, possible: Sequence[Any], language: Language) -> bool:
    """True if a value has its type and is among the possible ones."""
    expected, item, item_type = types_of(described, language)
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
        objects: Sequence[Mapping[str, Any]] = value
        return any(
            len(objects) == len(one) and all(o != "" and _same_object(v, o) for v, o in zip(objects, one, strict=True))
            for one in possible
        )
    if expected is str:
        return _standard(value) in [_standard(one) for one in possible if type(one) is str]
    if expected is list:
        return [_standard(v) for v in value] in [[_standard(v) for v in one] for one in possible]
    return value in possible


def _fits(value: Any, possible: Sequence[Any], expected: type, item: type | None) -> tuple[bool, bool]:
    """Return if the type is right, and if the value is then compared without normalization.

    The latter holds if the possible values have another type than the described one: the benchmark takes such
    a value for the name of a variable.
    """
    elements: Any = value
    of_possible = next((type(one) for one in possible if one != ""), None)
    is_variable = of_possible is not None and of_possible is not expected
    if type(value) is expected:
        # Each element has the described type, or that of the elements of a possible list.
        fits = item is None or any(
            type(one) is not list or all(_fits(element, one, item, None)[0] for element in elements)
            for one in possible
        )
        return fits, is_variable
    if of_possible is not None and type(value) is of_possible:
        return True, True
    return False, False


def _same_object(value: Mapping[str, Any], possible: Mapping[str, Sequence[Any]]) -> bool:
    """True if an object has possible values under possible keys; one may be omitted only if "" is
    possible."""
    return all(
        key in possible and _standard(inner) in [_standard(one) for one in possible[key]]
        for key, inner in value.items()
    ) and all(key in value or "" in values for key, values in possible.items())


def _standard(value: Any) -> Any:
    """Return a string without spaces and ,./-_*^, in lower case and with double quotes; other values
    unchanged."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if type(value) is str else value


_INTEGER = re.compile(r"-?\d+")
_JAVA_FLOAT = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?[fF]")
_JAVA_LONG = re.compile(r"-?\d+[lL]")
_Number = tuple[re.Pattern[str], Callable[[str], Any]]
"""The form of a literal, and its value."""
_JAVA_NUMBERS: Mapping[str, _Number] = {
    **dict.fromkeys(("byte", "short", "integer"), (_INTEGER, int)),
    "float": (_JAVA_FLOAT, lambda digits: float(digits[:-1])),
    "double": (re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?"), float),
    "long": (_JAVA_LONG, lambda digits: int(digits[:-1])),
}
_JAVASCRIPT_NUMBERS: Mapping[str, _Number] = {
    "integer": (_INTEGER, int),
    "float": (re.compile(r"-?\d+(\.\d+)?"), float),
    "Bigint": (re.compile(r"-?\d+n"), lambda digits: int(digits[:-1])),
}

_AS_LIST = re.compile(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)")
_ADDED = re.compile(r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*(.+?)\s*\}\}", re.DOTALL)
_ADD = re.compile(r"add\((.+?)\)")
_EMPTY_LIST = re.compile(r"new\s+ArrayList<\w*>\(\)")
_ARRAY = re.compile(r"new\s+\w+\[\]\s*\{(.*?)\}")
_MAP = re.compile(r"new\s+HashMap<.*?>\s*\(\)\s*\{\s*\{?\s*(.*?)\s*\}?\s*\}", re.DOTALL)
_PUT = re.compile(r"put\(\"(.*?)\",\s*(.*?)\)")
_EMPTY_MAP = re.compile(r"new\s+HashMap<.*?>\s*\(\)")

_JS_ARRAYS = re.compile(r"\[\s*\[.*?\]\s*(,\s*\[.*?\]\s*)*\]|\bnew\s+Array\(\s*\[.*?\]\s*(,\s*\[.*?\]\s*)*\)")
_JS_ARRAY = re.compile(r"\[(.*?)\]|\bnew\s+Array\((.*?)\)")
_JS_OBJECT = re.compile(r"\{(.*?)\}")
_JS_PAIR = re.compile(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)")


MAX_CHARS, MAX_BLANKS, MAX_ROWS = 10_000, 16, 16
"""Bounds of a collection, because the patterns above backtrack and the policy chooses the text. More stays
text."""
_BLANKS = re.compile(rf"\s{{{MAX_BLANKS + 1}}}")


class UnknownType(ValueError):
    """A type in a function's description for which the benchmark has no literals."""


def java_value(text: str, kind: str, item: str | None = None) -> Any:
    """Return the value of a Java literal of type `kind` with elements of type `item`, or the text if it is no
    literal.

    Raises:
        UnknownType: the benchmark has no literals of that type.
    """
    if kind in _JAVA_COLLECTIONS:
        return _JAVA_COLLECTIONS[kind](text, item) if _is_bounded(text) else text
    if kind in _JAVA_NUMBERS:
        return _parsed(text, *_JAVA_NUMBERS[kind])
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind in ("char", "String", "any"):
        return text
    raise UnknownType(f"a Java literal of type {kind!r}")


def javascript_value(text: str, kind: str, item: str | None = None) -> Any:
    """Return the value of a JavaScript literal, as `java_value`."""
    if kind == "String":
        return text[1:-1] if _is_quoted(text) else text
    if kind in _JAVASCRIPT_NUMBERS:
        return _parsed(text, *_JAVASCRIPT_NUMBERS[kind])
    if kind == "Boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind in ("dict", "array") and not _is_bounded(text):
        return text
    if kind == "dict":
        return _javascript_object(text.strip())
    if kind == "array":
        return _javascript_array(text.strip(), item)
    if kind == "any":
        return text
    raise UnknownType(f"a JavaScript literal of type {kind!r}")


def _parsed(text: str, form: re.Pattern[str], convert: Callable[[str], Any]) -> Any:
    """Return `convert` of a text that matches; a trailing line end is allowed, as by `$`."""
    body = text.removesuffix("\n")
    try:
        return convert(body) if form.fullmatch(body) else text
    except ValueError:  # more digits than Python converts
        return text


def _is_bounded(text: str) -> bool:
    if len(text) > MAX_CHARS or _BLANKS.search(text):
        return False
    return "\n" not in text or text.count("]") <= MAX_ROWS


def _is_quoted(text: str) -> bool:
    return any(text.startswith(quote) and text.endswith(quote) for quote in "\"'")


def _java_list(text: str, item: str | None) -> Any:
    if found := _AS_LIST.search(text):
        return [_java_element(element.strip(), item) for element in found[1].split(",")]
    if found := _ADDED.search(text):
        return [_java_element(element.strip(), item) for element in _ADD.findall(found[1])]
    return [] if _EMPTY_LIST.search(text) else text


def _java_element(text: str, item: str | None) -> Any:
    if item in ("char", "String"):
        return text[1:-1]
    return java_value(text, item) if item else _java_guess(text)


def _java_array(text: str, item: str | None) -> Any:
    found = _ARRAY.search(text)
    if found is None:
        return text
    elements = [element.strip() for element in found[1].split(",") if element.strip()]
    return [java_value(element, item) if item else _java_guess(element) for element in elements]


def _java_map(text: str, item: str | None) -> Any:
    if found := _MAP.search(text):
        return {key: _java_guess(value.strip()) for key, value in _PUT.findall(found[1])}
    return {} if _EMPTY_MAP.search(text) else text


_JAVA_COLLECTIONS: dict[str, Callable[[str, str | None], Any]] = {
    "Array": _java_array,
    "ArrayList": _java_list,
    "HashMap": _java_map,
}


def _java_guess(text: str) -> Any:
    """Return the value of a literal of unknown type."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    for form in (_JAVA_LONG, _JAVA_FLOAT):
        if form.fullmatch(text):
            return _number_or_text(text[:-1]) if form is _JAVA_LONG else float(text[:-1])
    return _number_or_text(text)


def _number_or_text(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _javascript_array(text: str, item: str | None) -> Any:
    if found := _JS_ARRAYS.match(text):
        rows = re.findall(r"\[(.*?)\]", found[0])
        rows = [row.strip() for row in rows]
        rows[0] = rows[0].removeprefix("[")
        return [[_javascript_guess(element) for element in row.split(",")] for row in rows]
    found = _JS_ARRAY.match(text)
    if found is None:
        return text
    inside = (found[1] if found[1] is not None else found[2]).strip()
    elements = [element.strip() for element in inside.split(",")] if inside else []
    try:
        return [javascript_value(e, item) if item else _javascript_guess(e) for e in elements]
    except UnknownType:
        return text


def _javascript_object(text: str) -> Any:
    if text == "{}":
        return {}
    found = _JS_OBJECT.match(text)
    if found is None:
        return text
    return {key.strip().strip("'\""): _javascript_member(value.strip()) for key, value in _JS_PAIR.findall(found[1])}


def _javascript_member(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        return _javascript_array(text, None)
    if text.startswith("{") and text.endswith("}"):
        return _javascript_object(text)
    return _javascript_guess(text.strip("'\""))


def _javascript_guess(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if _is_quoted(text) else _number_or_text(text)
