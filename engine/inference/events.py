"""Server-sent events of a streamed response, independent of the network's chunks.

    bytes ──> EventLines.feed ──> payloads of `data`      a comment only shows that the server is alive

The reader waits for the first bytes as long as its caller allows, and for more at most `gap_s` of event loop
time.
"""

import re
from collections.abc import AsyncIterator, Callable

import aiohttp

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.running_time import running_timeout

DONE = b"[DONE]"
"""The last payload of a stream, of SGLang as of OpenAI."""
MAX_EVENT_BYTES = 1 << 28
ENDS = re.compile(rb"\r\n|\r|\n")


class EventLines:
    """Invariant: the payloads do not depend on the chunks of the bytes; an incomplete event gives none. An
    event longer than `max_bytes` is a ValueError."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._line: list[bytes] = []
        """Pieces of the line that has not ended yet."""
        self._data: list[bytes] = []
        """Lines of `data` of the event that has not ended yet."""
        self._held = 0
        self._ended_in_return = False
        """The last byte was a carriage return: a line feed behind it ends no line."""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of the events that end in these bytes."""
        if self._ended_in_return and data.startswith(b"\n"):
            data = data[1:]
            self._ended_in_return = False
        if not data:
            return []
        self._ended_in_return = data.endswith(b"\r")
        found: list[bytes] = []
        *ended, rest = ENDS.split(data)
        for piece in ended:
            line = b"".join([*self._line, piece])
            self._line.clear()
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data.clear()
                self._held = 0
        self._line += [rest] if rest else []
        self._held += len(data)
        if not self._line and not self._data:
            self._held = 0
        elif self._held > self._max_bytes:
            raise ValueError(f"an event of more than {self._max_bytes} bytes")
        return found


async def read_events(
    response: aiohttp.ClientResponse, *, gap_s: float, excused: Callable[[], bool] = lambda: False
) -> AsyncIterator[bytes]:
    """Yield the payloads before the last event. `excused` returns True while a silence is expected.

    Raises InferenceError: `replica_hung` after too long a silence, `replica_lost` if the stream ends before
    its last event, `bad_reply` for a response that is not a stream.
    """
    lines, data = EventLines(), await response.content.readany()
    while True:
        if not data:
            detail = f"{response.url}: the stream ended in the middle of an answer"
            raise InferenceError("replica_lost", detail, retryable=True)
        try:
            payloads = lines.feed(data)
        except ValueError as error:
            raise InferenceError("bad_reply", f"{response.url}: {error}", retryable=True) from error
        for payload in payloads:
            if payload == DONE:
                return
            yield payload
        data = await _more(response, gap_s, excused)


async def _more(response: aiohttp.ClientResponse, gap_s: float, excused: Callable[[], bool]) -> bytes:
    while True:
        try:
            async with running_timeout(gap_s):
                return await response.content.readany()
        except TimeoutError:
            if excused():
                continue
            detail = f"{response.url}: nothing came for {gap_s} s in the middle of an answer"
            raise InferenceError("replica_hung", detail, retryable=True) from None
