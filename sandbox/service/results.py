"""Results of calls in responses: failures, sizes, the budget for buffered output, and streamed cells.

    result --> budget used up? only the beginning --> take --> ... response sent --> give back

A request may have 65,536 calls, each of which writes megabytes.

A streamed cell sends its output while it runs, then its result:
    NDJSON   {"stream": "stdout", "text": "..."} per line, last {"result": {...}} or {"error": {...}}
    SSE      event: output | result | error      data: the same as one line of JSON
"""

import asyncio
import dataclasses
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, fields
from typing import Any, cast

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from rocstar.sandbox.http import responses
from rocstar.sandbox.http.errors import RETRY_AFTER_S, RequestError
from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.http.routes import HttpRequest
from rocstar.sandbox.types import ExecResult, OnOutput, SandboxError, SessionLost

MAX_JSON_FILES_BYTES = 8 << 20
"""The maximum size of all files in one JSON text, because coding it blocks the event loop. Larger files are
sent alone, by /v1/sessions/{id}/files."""


Result = msgspec.defstruct(
    "Result",
    [(item.name, item.type) for item in fields(ExecResult)],
    forbid_unknown_fields=True,
    namespace={"__doc__": "How a program ended, what it wrote and what it used."},
)


class FailureFields(Struct, forbid_unknown_fields=True):
    """A failure. `field`: the invalid field of the request; `reason`: why a session was lost."""

    kind: str
    message: str
    retryable: bool
    field: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class Failure(Struct, forbid_unknown_fields=True):
    """No result."""

    error: FailureFields


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


def is_retryable(error: SandboxError) -> bool:
    """Return True if the same call may succeed later. This includes a closed sandbox: a restarted service has
    another."""
    return error.retryable or error.kind == "closed"


def to_failure(error: SandboxError) -> Failure:
    reason = error.reason if isinstance(error, SessionLost) else UNSET
    return Failure(FailureFields(kind=error.kind, message=str(error), retryable=is_retryable(error), reason=reason))


def failure_response(error: SandboxError) -> responses.HttpResponse:
    """A call of its own that has no result."""
    status = FAILURE_STATUS.get(error.kind, 503 if is_retryable(error) else 500)
    return responses.HttpResponse(
        status=status,
        body=responses.to_json(to_failure(error)),
        keep=False,
        retry_after_s=RETRY_AFTER_S if status in (429, 503) else None,
    )


WIDE_CHARS = 1 << 12
"""Longer texts are checked for wide characters."""


def count_chars(result: ExecResult) -> int:
    """Return the memory size of the texts in bytes: up to four per character."""
    value = result.value
    size = len(result.stdout) + len(result.stderr) + (0 if value is None else len(value))
    if size < WIDE_CHARS:
        return size
    texts = (result.stdout, result.stderr, value or "")
    return sum(len(text) if text.isascii() else sys.getsizeof(text) for text in texts)


def count_file_bytes(result: ExecResult) -> int:
    """Return the size of files and displays."""
    return sum(map(len, result.files.values())) + sum(len(one.data) for one in result.displays)


TRUNCATED_CHARS = 4096
"""The length of a truncated text."""


@dataclass(eq=False)
class OutputBuffer:
    """The output that one request holds, released at exit. Invariant: if each result is truncated before it
    is kept, requests hold one result each beyond the total of `shares`, and truncated texts of the same
    total."""

    shares: OwnerBudget
    owner: str
    chars: int = 0

    def __enter__(self) -> "OutputBuffer":
        return self

    def __exit__(self, *error: object) -> None:
        if self.chars:
            self.shares.give(self.owner, self.chars)

    @property
    def full(self) -> bool:
        """True if only truncated texts should be kept."""
        return not self.shares.fits(self.owner, 0)

    def truncate(self, result: ExecResult) -> ExecResult:
        """Return the result with as much text as the budget allows: all of it, truncated, or none."""
        if not self.full:
            return result
        spent = self.shares.used_by(self.owner) > 2 * self.shares.limit_of(self.owner)
        return truncate_output(result, 0 if spent else TRUNCATED_CHARS)

    def take(self, chars: int) -> None:
        """Hold more characters, or fewer if they were sent."""
        self.chars += chars
        self.shares.take(self.owner, chars)


def truncate_output(result: ExecResult, chars: int = TRUNCATED_CHARS) -> ExecResult:
    """Return the result with truncated texts."""
    return dataclasses.replace(
        result,
        stdout=result.stdout[:chars],
        stderr=result.stderr[:chars],
        value=None if result.value is None else result.value[:chars],
        stdout_truncated=result.stdout_truncated or len(result.stdout) > chars,
        stderr_truncated=result.stderr_truncated or len(result.stderr) > chars,
    )


def fit_to_budget(result: ExecResult, held: OutputBuffer) -> ExecResult:
    """Return the result, truncated if the budget is used up. Raises SandboxError then if it has files, which
    cannot be truncated."""
    if (result.files or result.displays) and held.full:
        message = "it has run, but answers that clients have yet to take leave no room for its files"
        raise SandboxError(message, kind="no_room", retryable=False)
    return held.truncate(result)


async def send_buffered(
    request: HttpRequest,
    answer: responses.HttpResponse,
    held: OutputBuffer,
    timeout_s: float = responses.WRITE_S,
    *,
    kept: bool = False,
) -> web.StreamResponse:
    """Send a response and hold its size until the client has read it. Raises RequestError for a stored
    response (`kept`) if too much is held: the client can request it again."""
    if len(answer.body) >= responses.SINGLE_WRITE_BYTES:
        if kept and held.full:
            message = "answers that clients have yet to take leave no room for this one; ask again later"
            raise RequestError(message, kind="full")
        held.take(len(answer.body) - held.chars)
    return await responses.send(request, answer, timeout_s)


EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class OutputEvent:
    """A piece of text that was just written. `stream`: "stdout" or "stderr"."""

    stream: str
    text: str


Event = OutputEvent | ExecResult | SandboxError


async def stream_cell(
    start: Callable[[OnOutput], Coroutine[None, None, ExecResult]], held: OutputBuffer
) -> AsyncGenerator[Event, None]:
    """Yield the output, then the result or failure. Closing the generator cancels the cell. Unread events
    count as `held`; if that budget is used up, output events are dropped and the result is truncated."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    def tell(stream: str, text: str) -> None:
        if not held.full:
            held.take(len(text))
            events.put_nowait(OutputEvent(stream, text))

    async def whole() -> None:
        try:
            result = await start(tell)
            check_files_fit(result)
            result = fit_to_budget(result, held)
            held.take(_event_size(result))
            events.put_nowait(result)
        except SandboxError as error:
            events.put_nowait(error)

    running = asyncio.create_task(whole())
    running.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
            held.take(-_event_size(event))
        await running  # raise other errors
    finally:
        running.cancel()
        await asyncio.wait((running,))


def check_files_fit(result: ExecResult) -> None:
    """Raises SandboxError for files that are more than one JSON text carries."""
    if not result.files and not result.displays:
        return
    total = count_file_bytes(result)
    if total > MAX_JSON_FILES_BYTES:
        message = f"the files have {total} bytes; at most {MAX_JSON_FILES_BYTES} go into one answer, more by "
        raise SandboxError(f"{message}GET /v1/sessions/ID/files/NAME", kind="too_large", retryable=False)


def _event_size(event: Event) -> int:
    if isinstance(event, OutputEvent):
        return len(event.text)
    return 0 if isinstance(event, SandboxError) else count_chars(event) + count_file_bytes(event)


async def encode_event(kind: str, event: Event) -> bytes:
    name, fields = "result", cast(Any, {"result": event})
    if isinstance(event, OutputEvent):
        name, fields = "output", {"stream": event.stream, "text": event.text}
    elif isinstance(event, SandboxError):
        name, fields = "error", to_failure(event)
    text = await responses.encode_json(fields, _event_size(event))
    return text + b"\n" if kind == responses.NDJSON else b"event: %b\ndata: %b\n\n" % (name.encode(), text)
