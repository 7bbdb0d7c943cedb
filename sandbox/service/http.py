"""What every route needs from HTTP: bounded bodies, answers as JSON, the status of a failure of ours."""

import asyncio
import json
from typing import Any

from aiohttp import web

from rocstar.sandbox.service.errors import Refused, TooLarge
from rocstar.sandbox.service.idempotency import Answer
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


async def read_body(request: web.BaseRequest, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body. It is not kept in the request: what waits for programs holds only decoded calls."""
    length = request.content_length
    if length is not None and length > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
    except TimeoutError:
        raise Refused(
            f"the body did not arrive within {timeout_s:g} s", field="body", status=408, kind="slow_body"
        ) from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than the {max_bytes} bytes that this service takes", field="body")


def to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def failure_fields(error: SandboxError) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": error.kind, "message": str(error), "retryable": error.retryable}
    if isinstance(error, SessionLost):
        fields["reason"] = error.reason
    return fields


def failure_answer(error: SandboxError) -> Answer:
    """A call of its own that has no result."""
    status = FAILURE_STATUS.get(error.kind, 503 if error.retryable else 500)
    return Answer(
        status=status,
        body=to_json({"error": failure_fields(error)}),
        keep=False,
        retry_after_s=1 if status in (429, 503) else None,
    )


def respond(answer: Answer) -> web.Response:
    headers = {} if answer.retry_after_s is None else {"Retry-After": str(answer.retry_after_s)}
    return web.Response(
        body=answer.body, status=answer.status, headers=headers, content_type=answer.content_type
    )
