"""A cell that is followed: its output as it is written, then its result.

NDJSON   {"stream": "stdout", "text": "..."} per line, last {"result": {...}} or {"error": {...}}
SSE      event: output | result | error      data: the same as one line of JSON
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rocstar.sandbox.service.http import NDJSON, failure
from rocstar.sandbox.service.models import MAX_JSON_FILES_BYTES
from rocstar.sandbox.service.outputs import HeldOutput, fitting
from rocstar.sandbox.service.written import bytes_of, size_of, written
from rocstar.sandbox.types import ExecResult, OnOutput, SandboxError

EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of text that was just written. `stream`: "stdout" or "stderr"."""

    stream: str
    text: str


Event = Output | ExecResult | SandboxError


def stream_kind(accept: str) -> str:
    """In which of the two forms a client wants to follow; empty when it does not."""
    return EVENTS if EVENTS in accept else NDJSON if NDJSON in accept else ""


async def followed(
    start: Callable[[OnOutput], Coroutine[None, None, ExecResult]], held: HeldOutput
) -> AsyncGenerator[Event, None]:
    """What is written, and last the outcome. Closing it cancels the cell. What waits to be read is `held`;
    where that is full, output is not told as it is written, and of the result there are heads."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    def tell(stream: str, text: str) -> None:
        if not held.full:
            held.take(len(text))
            events.put_nowait(Output(stream, text))

    async def whole() -> None:
        try:
            result = await start(tell)
            check_taken(result)
            result = fitting(result, held)
            held.take(_size_of(result))
            events.put_nowait(result)
        except SandboxError as error:
            events.put_nowait(error)

    running = asyncio.create_task(whole())
    running.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
            held.give(_size_of(event))
        await running  # what is no outcome is raised
    finally:
        running.cancel()
        await asyncio.wait((running,))


def check_taken(result: ExecResult) -> None:
    """Raises SandboxError for files that are more than one JSON text carries."""
    if not result.files and not result.displays:
        return
    total = bytes_of(result)
    if total > MAX_JSON_FILES_BYTES:
        message = f"the files have {total} bytes; at most {MAX_JSON_FILES_BYTES} go into one answer, more by "
        raise SandboxError(f"{message}GET /v1/sessions/ID/files/NAME", kind="too_large", retryable=False)


def _size_of(event: Event) -> int:
    if isinstance(event, Output):
        return len(event.text)
    return 0 if isinstance(event, SandboxError) else size_of(event)


async def event_line(kind: str, event: Event) -> bytes:
    name, fields = _named(event)
    text = await written(fields, _size_of(event))
    return text + b"\n" if kind == NDJSON else b"event: %b\ndata: %b\n\n" % (name.encode(), text)


def _named(event: Event) -> tuple[str, Any]:
    if isinstance(event, Output):
        return "output", {"stream": event.stream, "text": event.text}
    if isinstance(event, SandboxError):
        return "error", failure(event)
    return "result", {"result": event}
