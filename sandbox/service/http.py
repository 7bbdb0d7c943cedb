"""What every route needs from HTTP: answers as JSON, the status of a failure of ours."""

import json
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET

from rocstar.sandbox.service.answers import Failure, FailureFields
from rocstar.sandbox.service.idempotency import HttpAnswer
from rocstar.sandbox.types import SandboxError, SessionLost

JSON = "application/json"
NDJSON = "application/x-ndjson"

FAILURE_STATUS = {
    "deadline": 504,
    "full": 429,
    "session_lost": 410,
    "unknown_flavour": 400,
    "missing_import": 501,
    "no_isolation": 501,
    "no_scratch": 501,
    "no_sessions": 501,
}
"""HTTP status by kind of SandboxError; 503 if another may pass, 500 if not."""


def to_json(value: Any) -> bytes:
    """JSON of an answer. Half of a surrogate pair in it, a client's own `sub_id` say, is no UTF-8."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def failure(error: SandboxError) -> Failure:
    reason = error.reason if isinstance(error, SessionLost) else UNSET
    return Failure(
        FailureFields(kind=error.kind, message=str(error), retryable=error.retryable, reason=reason)
    )


def failure_answer(error: SandboxError) -> HttpAnswer:
    """A call of its own that has no result."""
    status = FAILURE_STATUS.get(error.kind, 503 if error.retryable else 500)
    return HttpAnswer(
        status=status,
        body=to_json(failure(error)),
        keep=False,
        retry_after_s=1 if status in (429, 503) else None,
    )


def respond(answer: HttpAnswer) -> web.Response:
    headers = {} if answer.retry_after_s is None else {"Retry-After": str(answer.retry_after_s)}
    return web.Response(
        body=answer.body, status=answer.status, headers=headers, content_type=answer.content_type
    )
