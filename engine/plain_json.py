"""Plain Python values as JSON and back, with the types that JSON does not have.

    (1, 2) -> {"~": "tuple", "of": [1, 2]}        {3: "a"} -> {"~": "dict", "of": [[3, "a"]]}

A task's `meta` holds such values (a reasoning-gym entry), and its scorer may distinguish a tuple from a list.
"""

from __future__ import annotations

from typing import Any

TAG = "~"
_SEQUENCES: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def to_plain(value: Any) -> Any:
    """Return a value for `json.dumps` that `from_plain` converts back to an equal value of the same types.

    Raises:
        TypeError: a value, or one inside it, has another type.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and TAG not in value:
            return {key: to_plain(item) for key, item in value.items()}
        return {TAG: "dict", "of": [[to_plain(key), to_plain(item)] for key, item in value.items()]}
    name = type(value).__name__
    if type(value) is not _SEQUENCES.get(name):
        raise TypeError(f"{name} is no plain value")
    return {TAG: name, "of": [to_plain(item) for item in (value if name == "tuple" else sorted(value, key=repr))]}


def from_plain(value: Any) -> Any:
    """The value that `to_plain` was given. ValueError for a tag it does not write."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: from_plain(item) for key, item in value.items()}
    name, items = value[TAG], value["of"]
    if name == "dict":
        return {from_plain(key): from_plain(item) for key, item in items}
    if name not in _SEQUENCES:
        raise ValueError(f"unknown tag {name!r}")
    return _SEQUENCES[name](from_plain(item) for item in items)
