"""Request errors as OpenAI's error object."""

from __future__ import annotations

from typing import Any

from rocstar.engine.rollout.rollout import POLICY_TIMEOUT, TRAJECTORY_TIMEOUT
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.guard import UNAUTHORIZED

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 504: "timeout_error"}
_CODES = {UNAUTHORIZED: "invalid_api_key", "": None}
"""OpenAI's codes, for kinds that have another name there."""


def error_object(error: RequestError) -> dict[str, Any]:
    """Return the error in OpenAI's format."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    code = _CODES.get(error.kind, error.kind)
    return {"error": {"message": str(error), "type": kind, "param": error.field or None, "code": code}}


def conversation_error(kind: str, detail: str, *, retryable: bool) -> RequestError:
    """Return the error for a conversation that failed outside the policy."""
    if kind == "too_long":
        return RequestError(
            f"the conversation is too long for the engine: {detail}; send fewer messages or lower max_tokens",
            field="messages",
            kind="context_length_exceeded",
        )
    if kind == "bad_token":
        return RequestError(f"the model does not know an id: {detail}", field="prompt", kind=kind)
    if kind in ("deadline", TRAJECTORY_TIMEOUT, POLICY_TIMEOUT):
        return RequestError(
            f"the conversation exceeded its time limit: {detail}", status=504, kind="deadline"
        )
    if kind == "queue_timeout":
        return RequestError(f"no engine slot was free in time: {detail}", status=503, kind=kind)
    return RequestError(f"{kind}: {detail}", status=503 if retryable else 500, kind=kind)
