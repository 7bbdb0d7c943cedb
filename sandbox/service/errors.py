"""Refusals of the service. Each knows its HTTP status; the dialects render them in their own shape."""

import json
from contextlib import suppress
from typing import Any

MAX_REFUSAL_BYTES = 1 << 16
"""Of an answer that says what is wrong with a body."""

MAX_NAME_CHARS = 100
"""Of a name in a longer one, where the body has names of its own: those of options, or of files."""


class Refused(Exception):
    """A request that is answered without running anything. `field` names the part of it that is at fault."""

    status = 400
    kind = "bad_request"

    def __init__(self, message: str, *, field: str = "", status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.field = field
        if status is not None:
            self.status = status
        if kind:
            self.kind = kind

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "message": str(self),
            "field": self.field,
            "retryable": self.status in (429, 503),
        }

    def outcome(self) -> bytes:
        """JSON of what a client is told of a call of a batch."""
        return json.dumps({"error": self.to_json()}, separators=(",", ":")).encode()


class Full(Refused):
    """More calls are in flight than the service takes. Nothing ran; ask again after `retry_after_s`."""

    status = 429
    kind = "full"
    retry_after_s = 1


class ServiceEnds(Refused):
    """The service ends. Nothing of the request ran, and another service may run it."""

    status = 503
    kind = "closed"

    def __init__(self) -> None:
        super().__init__("the service is shutting down")


class TooLarge(Refused):
    status = 413
    kind = "too_large"


class SchemaError(Refused):
    """A body that does not fit a borrowed schema, described the way that schema's own server does. `answer`:
    that description as JSON, put together where the body was decoded."""

    status = 422

    def __init__(self, message: str, *, field: str = "", answer: bytes = b"") -> None:
        super().__init__(message, field=field)
        self.answer = answer

    @classmethod
    def of(cls, details: list[dict[str, Any]]) -> "SchemaError":
        first = details[0]
        field = ".".join(map(str, _short(first["loc"])[1:])) or "body"
        return cls(first["msg"], field=field, answer=described(details))


def described(details: list[dict[str, Any]]) -> bytes:
    """What they quote of the body may be no JSON (NaN), nested beyond the encoder, or the whole body once for
    every field that is missing: then nothing is quoted, and of long names there the beginning."""
    texts, size = [], len('{"detail":[]}') - 1
    with suppress(ValueError, RecursionError):
        for detail in details:
            texts.append(json.dumps(detail, separators=(",", ":"), allow_nan=False))
            size += len(texts[-1]) + 1
            if size > MAX_REFUSAL_BYTES:  # the rest is not looked at: it may be a hundred times the body
                break
        else:
            return f'{{"detail":[{",".join(texts)}]}}'.encode()
    quiet = [{**detail, "loc": _short(detail["loc"]), "input": None} for detail in details]
    return json.dumps({"detail": quiet}, separators=(",", ":")).encode()


def _short(loc: list[str | int]) -> list[str | int]:
    return [part[:MAX_NAME_CHARS] if isinstance(part, str) else part for part in loc]


class Unparsable(Refused):
    """A body that is not JSON at all. `position` is the character where reading stopped, None if unknown."""

    def __init__(self, message: str, *, position: int | None = None, reason: str = "") -> None:
        super().__init__(message, field="body")
        self.position = position
        self.reason = reason
