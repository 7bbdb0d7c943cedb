"""What a client is told that asked for something it cannot have: OpenAI's error object, and the status."""

from __future__ import annotations

from typing import Any

from rocstar.engine.rollout.rollout import POLICY_TIMEOUT, TRAJECTORY_TIMEOUT

RETRY_AFTER_S = 1


class ServeRefusal(Exception):
    """An answer that is an error.

    Args:
        message: the value, the reason and the fix.
        status: of HTTP.
        param: the field of the request that is wrong.
        code: a word that programs read.
        kind: as OpenAI's `type`; the status says it where it is left out.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.kind = kind or _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """When to ask again, or how to be let in."""
        if self.status in (429, 503):
            return {"Retry-After": str(RETRY_AFTER_S)}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}


_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 504: "timeout_error"}


def failed(kind: str, detail: str, *, retryable: bool) -> ServeRefusal:
    """What a conversation ended with that failed by no fault of the policy."""
    if kind == "too_long":
        return ServeRefusal(
            f"the conversation is too long for the engine: {detail}; send fewer messages or lower max_tokens",
            param="messages",
            code="context_length_exceeded",
        )
    if kind == "bad_token":
        return ServeRefusal(f"the model does not know an id: {detail}", param="prompt", code=kind)
    if kind in ("deadline", TRAJECTORY_TIMEOUT, POLICY_TIMEOUT):
        return ServeRefusal(f"the conversation was not done in time: {detail}", status=504, code="deadline")
    if kind == "queue_timeout":
        return ServeRefusal(f"no place was free in time: {detail}", status=503, code=kind)
    return ServeRefusal(f"{kind}: {detail}", status=503 if retryable else 500, code=kind)
