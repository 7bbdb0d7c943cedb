"""What every route needs from HTTP: answers as JSON, the status of a failure of ours."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET

from rocstar.sandbox.service.answers import Failure, FailureFields
from rocstar.sandbox.service.idempotency import HttpAnswer
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.whole import Whole, can_be_whole
from rocstar.sandbox.types import SandboxError, SessionLost

JSON = "application/json"
NDJSON = "application/x-ndjson"

LARGE_BYTES = 1 << 20
"""From this on a text is put together beside the loop: Python lets go of its lock for that from here on."""

WHOLE_BYTES = 1 << 16
"""An answer of fewer is handed to the server whole, which may hold it for a client that does not take it; so
much a connection has room for anyway."""

PIECE_BYTES = 1 << 18
"""Of a long answer, written at a time."""

WRITE_S = 75.0
"""As long a client may take nothing of an answer."""

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


_ENCODER = msgspec.json.Encoder()


def to_json(value: Any) -> bytes:
    """JSON of an answer. Half of a surrogate pair in it, a client's own `sub_id` say, is no UTF-8."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


async def filled(head: bytes, items: list[bytes]) -> bytes:
    """JSON of an object whose last field is a list, given with that list empty, and the list's items. They
    were written one by one: to write them all at once, or to put a long text together, would take the loop's
    time."""
    if len(head) + sum(map(len, items)) < LARGE_BYTES:
        return _filled(head, items)
    return await asyncio.to_thread(_filled, head, items)  # where joining lets go of the interpreter's lock


def _filled(head: bytes, items: list[bytes]) -> bytes:
    if not items:
        return head
    pieces = [*items]
    pieces[0] = head[:-2] + pieces[0]
    pieces[-1] += head[-2:]
    return b",".join(pieces)


def may_pass(error: SandboxError) -> bool:
    """Whether the same call may succeed later: also where this sandbox ends, for a service that is started
    again has another."""
    return error.retryable or error.kind == "closed"


def failure(error: SandboxError) -> Failure:
    reason = error.reason if isinstance(error, SessionLost) else UNSET
    return Failure(
        FailureFields(kind=error.kind, message=str(error), retryable=may_pass(error), reason=reason)
    )


def failure_answer(error: SandboxError) -> HttpAnswer:
    """A call of its own that has no result."""
    status = FAILURE_STATUS.get(error.kind, 503 if may_pass(error) else 500)
    return HttpAnswer(
        status=status,
        body=to_json(failure(error)),
        keep=False,
        retry_after_s=1 if status in (429, 503) else None,
    )


async def send(request: HttpRequest, answer: HttpAnswer, timeout_s: float = WRITE_S) -> web.StreamResponse:
    """The answer, sent but for what a connection has room for if it is long: the server would copy it whole
    while nobody else has a turn. Raises ConnectionResetError if the client takes nothing for `timeout_s`."""
    if len(answer.body) < WHOLE_BYTES:
        return Whole(answer) if can_be_whole(request, answer) else respond(answer)
    headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body))}
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    await write(response, answer.body, timeout_s)
    return await finished(response, timeout_s)


async def open_stream(request: web.Request, kind: str = NDJSON) -> web.StreamResponse:
    """A response whose parts are sent as they come."""
    headers = {"Content-Type": kind, "X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def write(response: web.StreamResponse, content: bytes, timeout_s: float = WRITE_S) -> None:
    """In pieces. Its client has so long to take what was sent before. Raises ConnectionResetError."""
    view = memoryview(content)
    for begin in range(0, len(view), PIECE_BYTES):
        await _taken(response.write(view[begin : begin + PIECE_BYTES]), timeout_s)


async def finished(response: web.StreamResponse, timeout_s: float = WRITE_S) -> web.StreamResponse:
    """The response, with its end sent. Raises ConnectionResetError."""
    await _taken(response.write_eof(), timeout_s)
    return response


async def _taken(writing: Awaitable[None], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await writing
    except TimeoutError:
        raise ConnectionResetError("the client does not take what it asked for") from None


def respond(answer: HttpAnswer) -> web.Response:
    headers = {} if answer.retry_after_s is None else {"Retry-After": str(answer.retry_after_s)}
    return web.Response(
        body=answer.body, status=answer.status, headers=headers, content_type=answer.content_type
    )
