"""Errors of requests. Each has an HTTP status; a dialect renders it in its own format."""

import json
from contextlib import suppress
from typing import Any

MAX_REFUSAL_BYTES = 1 << 16
"""The maximum size of a response that describes an invalid body."""

MAX_NAME_CHARS = 100
"""The maximum length of a name of the client (an option or a file) in the path of a field."""

RETRY_AFTER_S = 1
STATUS_OF_KIND = {"full": 429, "closed": 503, "too_large": 413}
"""full: a limit of the server is reached. closed: it is shutting down, and another may run the request.
too_large: a body, or a number of calls, that is above a limit."""


class RequestError(Exception):
    """A request that is rejected before anything runs.

    Attributes:
        status: The HTTP status.
        kind: A short stable word for programs; "" if there is none. It may imply the status.
        field: The name of the invalid field or header; "" if there is none.
    """

    status = 400

    def __init__(self, message: str, *, field: str = "", status: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.status = status or STATUS_OF_KIND.get(kind, self.status)
        self.kind = kind

    def headers(self) -> dict[str, str]:
        """Return when to retry, or how to authenticate."""
        if self.status in (429, 503):
            return {"Retry-After": str(RETRY_AFTER_S)}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}

    def to_json(self) -> dict[str, Any]:
        """Return the error in the native format."""
        return {
            "kind": self.kind or "bad_request",
            "message": str(self),
            "field": self.field,
            "retryable": self.status in (429, 503),
        }

    def encode_outcome(self) -> bytes:
        """Return the JSON of a rejected call of a batch."""
        return json.dumps({"error": self.to_json()}, separators=(",", ":")).encode()


def shutting_down() -> RequestError:
    return RequestError("the service is shutting down", kind="closed")


class SchemaError(RequestError):
    """A body that does not fit a borrowed schema, described the way that schema's own server does. `answer`:
    that description as JSON, put together where the body was decoded."""

    status = 422

    def __init__(self, message: str, *, field: str = "", answer: bytes = b"") -> None:
        super().__init__(message, field=field)
        self.answer = answer

    @classmethod
    def of(cls, details: list[dict[str, Any]]) -> "SchemaError":
        first = details[0]
        field = ".".join(map(str, _shorten_loc(first["loc"])[1:])) or "body"
        return cls(first["msg"], field=field, answer=describe_errors(details))


def describe_errors(details: list[dict[str, Any]]) -> bytes:
    """Return the response body. The errors may quote values of the body that JSON cannot encode (NaN), that
    are nested too deeply, or that are repeated for every missing field; then the values are left out and long
    names are truncated."""
    texts, size = [], len('{"detail":[]}') - 1
    with suppress(ValueError, RecursionError):
        for detail in details:
            texts.append(json.dumps(detail, separators=(",", ":"), allow_nan=False))
            size += len(texts[-1]) + 1
            if size > MAX_REFUSAL_BYTES:  # the rest may be a hundred times the body
                break
        else:
            return f'{{"detail":[{",".join(texts)}]}}'.encode()
    quiet = [{**detail, "loc": _shorten_loc(detail["loc"]), "input": None} for detail in details]
    return json.dumps({"detail": quiet}, separators=(",", ":")).encode()


def _shorten_loc(loc: list[str | int]) -> list[str | int]:
    return [part[:MAX_NAME_CHARS] if isinstance(part, str) else part for part in loc]


class InvalidJson(RequestError):
    """A body that is not JSON at all. `position` is the character where reading stopped, None if unknown."""

    def __init__(self, message: str, *, position: int | None = None, reason: str = "") -> None:
        super().__init__(message, field="body")
        self.position = position
        self.reason = reason
