"""Java and JavaScript literals, written as text, to the values that the rule compares. Pure.

    "new int[]{1, 2}" --Array of integer--> [1, 2]        "3L" --long--> 3        "x" --long--> "x"

Functions of these two categories take every argument as the text of a literal. A text that is no literal of
its type stays the text it is, and then fails the rule's type or value. Which forms count is the benchmark's
own reading (BFCL v3, its type converters), odd corners included, because scores are compared with published
ones: elements of a collection are split at every comma, for instance, in strings too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+(\.\d+)?")
_SCIENTIFIC = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_JAVA_FLOAT = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?[fF]")
_JAVA_LONG = re.compile(r"-?\d+[lL]")
_BIG_INTEGER = re.compile(r"-?\d+n")

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
"""Bounds of a collection: the forms above backtrack, and the policy chooses the text. More stays text."""
_BLANKS = re.compile(rf"\s{{{MAX_BLANKS + 1}}}")


class UnknownType(ValueError):
    """A type of a function's description for which the benchmark has no literals."""


def java_value(text: str, kind: str, item: str | None = None) -> Any:
    """The value of a Java literal of type `kind`, its elements of type `item`; the text where it is none.

    Raises:
        UnknownType: the benchmark reads no literals of that type.
    """
    if kind in _JAVA_COLLECTIONS:
        return _JAVA_COLLECTIONS[kind](text, item) if _is_bounded(text) else text
    if kind in ("byte", "short", "integer"):
        return _parsed(text, _INTEGER, int)
    if kind == "float":
        return _parsed(text, _JAVA_FLOAT, lambda digits: float(digits[:-1]))
    if kind == "double":
        return _parsed(text, _SCIENTIFIC, float)
    if kind == "long":
        return _parsed(text, _JAVA_LONG, lambda digits: int(digits[:-1]))
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind in ("char", "String", "any"):
        return text
    raise UnknownType(f"a Java literal of type {kind!r}")


def javascript_value(text: str, kind: str, item: str | None = None) -> Any:
    """The value of a JavaScript literal, as `java_value`."""
    if kind == "String":
        return text[1:-1] if _is_quoted(text) else text
    if kind == "integer":
        return _parsed(text, _INTEGER, int)
    if kind == "float":
        return _parsed(text, _DECIMAL, float)
    if kind == "Bigint":
        return _parsed(text, _BIG_INTEGER, lambda digits: int(digits[:-1]))
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
    """`convert` of a text that has the form; a line end behind it is allowed, as by `$`."""
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
    """The value of a literal whose type nobody told."""
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
    return {
        key.strip().strip("'\""): _javascript_member(value.strip())
        for key, value in _JS_PAIR.findall(found[1])
    }


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
