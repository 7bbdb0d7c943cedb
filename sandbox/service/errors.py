"""Refusals of the service. Each knows its HTTP status; the dialects render them in their own shape."""

from typing import Any


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
        return {"kind": self.kind, "message": str(self), "field": self.field, "retryable": self.status == 429}


class Full(Refused):
    """More calls are in flight than the service takes. Nothing ran; ask again after `retry_after_s`."""

    status = 429
    kind = "full"
    retry_after_s = 1


class TooLarge(Refused):
    status = 413
    kind = "too_large"


class SchemaError(Refused):
    """A body that does not fit a borrowed schema, described the way that schema's own server does."""

    status = 422

    def __init__(self, details: list[dict[str, Any]]) -> None:
        first = details[0]
        super().__init__(first["msg"], field=".".join(str(part) for part in first["loc"][1:]) or "body")
        self.details = details


class Unparsable(Refused):
    """A body that is not JSON at all. `position` is the character where reading stopped, None if unknown."""

    def __init__(self, message: str, *, position: int | None = None, reason: str = "") -> None:
        super().__init__(message, field="body")
        self.position = position
        self.reason = reason
