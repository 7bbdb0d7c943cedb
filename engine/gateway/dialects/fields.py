"""Fields of JSON bodies, with their checks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from pydantic_core import from_json

from rocstar.engine.gateway.messages import Message, num_equal
from rocstar.sandbox.http.errors import RequestError

MAX_IGNORED, MAX_NAME_CHARS = 64, 40
"""Ignored fields of one request that are counted, and characters of a name."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("n", "best_of", "top_p", "repetition_penalty"), (1,)),
    **dict.fromkeys(("top_logprobs", "min_p", "presence_penalty", "frequency_penalty"), (0,)),
    **{"top_k": (-1, 0), "logit_bias": ({},), "use_beam_search": (False,), "suffix": ("",)},
}
"""Fields with the values that change nothing. Other values are ignored and counted."""

REFUSED = frozenset(("n", "best_of", "logit_bias", "use_beam_search"))
"""Fields of `NEUTRAL` whose other values are refused: the answer would not be one sample of the policy."""

T = TypeVar("T")
_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


LISTS = frozenset(("messages", "input", "tools"))
"""Lists that a client sends again with each request of a session. Their items stay JSON until they are read."""
_parts_of, _items_of = msgspec.json.Decoder(dict[str, Raw]).decode, msgspec.json.Decoder(list[Raw]).decode

MAX_COMPARED_BYTES = 1 << 17
"""The event loop splits and compares such a body in about a millisecond."""
Known = dict[str, tuple[list[Any], list[Any]]]
"""Lists of the latest body of a session: their items, and the value read from each. One thread has it at a time."""


class Fields(msgspec.Struct):
    """A JSON object of a request.

    Attributes:
        values: the object.
        where: its path in the body; "" for the body.
        known: lists of an earlier body, of which equal items are not read again; this body's replace them.
        names: of the fields that were read.
        others: names for `ignored` that are no fields.
    """

    values: Mapping[str, Any]
    where: str = ""
    known: Known = {}
    names: set[str] = set()
    others: list[str] = []

    @classmethod
    def of_body(cls, body: bytes, known: Known | None = None) -> Fields:
        """Parse a body. Raises RequestError if it is not an object of at most 200 levels."""
        try:
            values = {name: _value(part, name in LISTS) for name, part in _parts_of(body).items()}
        except (ValueError, RecursionError, msgspec.MsgspecError) as problem:
            raise _body_error(body, problem) from None
        return cls(values, known={} if known is None else known)

    def path(self, name: str | int) -> str:
        """Return the path of a field in the body."""
        return f"{self.where}.{name}" if self.where else str(name)

    def invalid(self, name: str, problem: str) -> RequestError:
        """Return the error for a field."""
        value = json.dumps(self.values[name], default=_decode)[:80] if name in self.values else "missing"
        return RequestError(f"{self.path(name)} is {value}: {problem}", field=self.path(name), kind="invalid_value")

    def get(self, name: str, kind: type[T], default: T) -> T:
        """Return a field of this kind; the default for null and for a missing field."""
        if name not in self.values:
            return default
        self.names.add(name)
        if (value := self.values[name]) is None:
            return default
        if type(value) is kind:
            return value
        # JSON has one kind of number: some clients write 16.0 for 16, or 1 for 1.0
        if (kind is int and isinstance(value, float) and value.is_integer()) or (kind is float and type(value) is int):
            return kind(value)  # type: ignore[call-arg]
        raise self.invalid(name, f"send {_KINDS[kind]}")

    def require(self, name: str, kind: type[T]) -> T:
        """Return a field. Raises RequestError if it is missing, null or empty."""
        if not self.values.get(name):
            raise self.invalid(name, f"send {_KINDS[kind]}")
        return self.get(name, kind, kind())

    def limit(self, *names: str) -> int | None:
        """Return the number of tokens that the first given field allows. Raises RequestError if it is not positive."""
        for name in names:
            if (value := self.get(name, int, 0)) < 0 or (value == 0 and self.values.get(name) is not None):
                raise self.invalid(name, "send a number of at least 1")
            if value:
                self.names.update(names)
                return value
        return None

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number of a range."""
        value = self.get(name, int, default)
        if not least <= value <= most:
            raise self.invalid(name, f"send a number from {least} to {most}")
        return value

    def temperature(self) -> float | None:
        """Return the temperature, or None."""
        value = self.get("temperature", float, math.nan)
        if self.values.get("temperature") is None:
            return None
        if not 0 <= value <= 10:
            raise self.invalid("temperature", "send a number from 0 to 10")
        return value

    def objects(self, name: str, begin: int = 0) -> list[Fields]:
        """Return the objects of a list from `begin` on; an empty list if it is missing."""
        where = self.path(name)
        return [_object(item, f"{where}.{k}") for k, item in enumerate(self.get(name, list, [])[begin:], begin)]

    def each(self, name: str, read: Callable[[Fields], T]) -> list[T]:
        """Read each object of a list of the body, except those that are known."""
        items, (before, made) = self.get(name, list, []), self.known.get(name, ([], []))
        same = num_equal(before, items)
        made = [*made[:same], *map(read, self.objects(name, same))]
        self.known[name] = items, made
        return made

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts of a field that is one text or a list of texts, none of them empty."""
        value = self.values.get(name)
        items = [self.get(name, str, "")] if isinstance(value, str) else self.get(name, list, [])
        if not all(isinstance(item, str) and item for item in items) or len(items) > 16:
            raise self.invalid(name, "send at most 16 texts, none of them empty")
        return tuple(items)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return the token ids of a list that is not empty."""
        ids = self.get(name, list, [])
        bad = next((k for k, token in enumerate(ids) if type(token) is not int or not 0 <= token < 1 << 31), None)
        if bad is not None:
            raise Fields({str(bad): ids[bad]}, self.path(name)).invalid(str(bad), "send a token id")
        if not ids:
            raise self.invalid(name, "send a list of token ids")
        return tuple(ids)

    def content(self, name: str, kinds: Collection[str]) -> str:
        """Return the concatenation of the parts of these kinds; of a text, the text."""
        if isinstance(self.values.get(name), str):
            return self.get(name, str, "")
        return "".join(part.part_text(kinds) for part in self.objects(name))

    def part_text(self, kinds: Collection[str]) -> str:
        """Return the text of a part of content. Raises RequestError for a part of another kind."""
        if (kind := self.get("type", str, "text")) not in kinds:
            raise self.invalid("type", "only text is read here")
        return self.get("refusal" if kind == "refusal" else "text", str, "")

    def functions(self, kind: str, schema: str) -> tuple[dict[str, Any], ...]:
        """Return the tools of a kind as chat templates show them. Others are ignored, as `tools.KIND`, and so is a
        choice that forces a call.

        schema: the name of the field with the schema of the parameters.
        """

        def read(tool: Fields) -> tuple[str, dict[str, Any] | None]:
            found = tool.get("type", str, kind)
            return found, tool.function(schema) if found == kind else None

        tools = self.each("tools", read)
        self.others += [f"tools.{found}" for found, _ in tools if found != kind]
        choice = self.values.get("tool_choice")
        chosen = choice.get("type") if isinstance(choice, dict) else choice
        if chosen in ("auto", "none"):
            self.names.add("tool_choice")
        return tuple(function for _, function in tools if function is not None and chosen != "none")

    def function(self, schema: str) -> dict[str, Any]:
        """Return a tool as chat templates show it. Chat completions have its fields one level lower."""
        given = Fields(self.get("function", dict, {}), self.path("function")) if "function" in self.values else self
        about = {"name": given.require("name", str), "description": given.get("description", str, "")}
        parameters = given.get(schema, dict, {}) or {"type": "object", "properties": {}}
        return {"type": "function", "function": {**about, "parameters": parameters}}

    def ignored(self, refused: Collection[str] = REFUSED) -> tuple[str, ...]:
        """Return the names of the fields that were not read. Raises RequestError for one in `refused` that would
        change something."""
        found = [*self.others]
        for name, value in self.values.items():
            if name in self.names or value is None:
                continue
            neutral = NEUTRAL.get(name, ())
            if any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
                continue
            if name in refused:
                problem = f"answers are samples of the policy as it is; send {json.dumps(neutral[0])}"
                raise self.invalid(name, problem)
            found.append(name)
        return tuple(name[:MAX_NAME_CHARS] for name in found[:MAX_IGNORED])


def num_unknown_bytes(body: bytes, known: Known) -> int:
    """Return the size of a body without the items that are known: how much of it is to be read. A body above
    MAX_COMPARED_BYTES is not compared."""
    if not known or len(body) > MAX_COMPARED_BYTES:
        return len(body)
    try:
        parts = _parts_of(body)
        lists = {name: _items_of(parts[name]) for name in known.keys() & parts.keys()}
    except (RecursionError, msgspec.MsgspecError):
        return len(body)
    same = {name: num_equal(known[name][0], items) for name, items in lists.items()}
    return len(body) - sum(len(bytes(item)) for name in lists for item in lists[name][: same[name]])


def _decode(part: Raw) -> Any:
    return from_json(bytes(part), allow_inf_nan=False, cache_strings="keys")


def _value(part: Raw, is_list: bool) -> Any:
    """Return the value of a part; of a list that clients send again the items, as they are."""
    content = bytes(part)
    return _items_of(part) if is_list and content.startswith(b"[") else from_json(content, allow_inf_nan=False)


def _object(item: Any, where: str) -> Fields:
    try:
        values = _decode(item) if isinstance(item, Raw) else item
    except ValueError as problem:
        message = f"{where} is not JSON: {problem}; send an object"
        raise RequestError(message, field=where, kind="invalid_json") from None
    if not isinstance(values, dict):
        raise RequestError(f"{where} is not an object", field=where, kind="invalid_value")
    return Fields(values, where)


def _body_error(body: bytes, problem: Exception) -> RequestError:
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as found:
        problem = found
    else:
        if not isinstance(value, dict):
            return RequestError("the body is not an object; send an object", kind="invalid_json")
    return RequestError(f"the body is not JSON: {problem}; send an object", kind="invalid_json")


def join_assistants(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Join adjacent messages of the assistant: formats with items send one turn in pieces."""
    joined: list[Message] = []
    for message in messages:
        if joined and message.role == joined[-1].role == "assistant":
            before = joined[-1]
            joined[-1] = replace(
                before,
                text=before.text + message.text,
                reasoning=before.reasoning + message.reasoning,
                calls=before.calls + message.calls,
            )
        else:
            joined.append(message)
    return tuple(joined)
