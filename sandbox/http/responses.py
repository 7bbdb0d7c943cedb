"""HTTP responses: JSON encoding and writing.

    few characters   to_json, in the event loop
    more             a thread: field by field, each long text in chunks, since the encoder holds the
                     interpreter's lock for a whole call (0.1 s for 64 MiB)

A short response is one socket write (`SingleWriteResponse`): aiohttp's `Response` collects headers for every
case, while these responses have the same five. A long response is written in chunks, with a timeout for a
client that does not read.
"""

import asyncio
import json
import time
from binascii import b2a_base64
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from itertools import chain
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE
from msgspec import UNSET, Struct

from rocstar.sandbox.http.routes import HttpRequest

GONE = 499
"""Nginx's status for a client that closed its request; no client receives it."""

JSON = "application/json"
NDJSON = "application/x-ndjson"
LARGE_BYTES = 1 << 20
"""Longer texts are joined in a thread: from this size on Python releases its lock while joining."""

SINGLE_WRITE_BYTES = 1 << 16
"""A shorter response is passed to the server whole, which buffers it if the client does not read; a
connection has a buffer of this size anyway."""

CHUNK_BYTES = 1 << 18
"""The chunk size of a long response."""

WRITE_S = 75.0
"""The default timeout for a client that does not read."""

LONG_CHARS = 1 << 18
CHUNK_CHARS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """The content of a response. keep: a retry with the same key gets it again. is_current: False if the
    thing it names no longer exists; checked before the response is sent again."""

    status: int
    body: bytes
    content_type: str = "application/json"
    keep: bool = True
    is_current: Callable[[], bool] = lambda: True
    retry_after_s: int | None = None


_ENCODER = msgspec.json.Encoder()


def to_json(value: Any) -> bytes:
    """Return the value as JSON. It may contain an unpaired surrogate, for example in a client's `sub_id`,
    which is not valid UTF-8 and is escaped."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def json_response(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=to_json(value), status=status, content_type=JSON)


async def send_json(request: HttpRequest, value: Any, num_chars: int) -> web.StreamResponse:
    """Send a value as JSON. `num_chars`: the approximate length of its texts."""
    return await send(request, HttpResponse(status=200, body=await encode_json(value, num_chars)))


async def encode_json(value: Any, num_chars: int) -> bytes:
    """JSON of an answer, whose texts have about so many characters."""
    if num_chars < LONG_CHARS:
        return to_json(value)
    return await asyncio.to_thread(encode_in_chunks, value)


def encode_in_chunks(value: Any) -> bytes:
    """Return the same bytes as `to_json`, by many short calls of the encoder."""
    return b"".join(_iter_json_chunks(value))


def _iter_json_chunks(value: Any) -> Iterator[bytes]:
    if type(value) is str and len(value) >= CHUNK_CHARS:
        yield b'"'
        for start in range(0, len(value), CHUNK_CHARS):
            yield to_json(value[start : start + CHUNK_CHARS])[1:-1]
        yield b'"'
    elif type(value) is bytes and len(value) >= CHUNK_CHARS:
        yield b'"'
        step = CHUNK_CHARS // 3 * 3  # so that base64 is padded at its end alone
        for start in range(0, len(value), step):
            yield b2a_base64(value[start : start + step], newline=False)
        yield b'"'
    elif isinstance(value, list | tuple):
        yield from _iter_joined(b"[", map(_iter_json_chunks, value), b"]")
    elif (items := _object_items(value)) is not None:
        members = (
            chain((to_json(name) + b":",), _iter_json_chunks(item)) for name, item in items if item is not UNSET
        )
        yield from _iter_joined(b"{", members, b"}")
    else:
        yield to_json(value)


def _object_items(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the members of a value that is a JSON object, or None for other values."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, Struct) and not value.__struct_config__.omit_defaults:
        return ((name, getattr(value, name)) for name in value.__struct_fields__)
    if is_dataclass(value):
        return ((item.name, getattr(value, item.name)) for item in fields(value))
    return None


def _iter_joined(begin: bytes, parts: Iterable[Iterator[bytes]], end: bytes) -> Iterator[bytes]:
    yield begin
    for place, part in enumerate(parts):
        if place:
            yield b","
        yield from part
    yield end


async def fill_list(head: bytes, items: list[bytes]) -> bytes:
    """Return the JSON of an object whose last field is a list. `head`: the object with an empty list;
    `items`: the encoded items. Encoding them all in one call, or joining a long text, would block the event
    loop."""
    if len(head) + sum(map(len, items)) < LARGE_BYTES:
        return _fill_list(head, items)
    return await asyncio.to_thread(_fill_list, head, items)  # joining releases the interpreter's lock


def _fill_list(head: bytes, items: list[bytes]) -> bytes:
    if not items:
        return head
    pieces = [*items]
    pieces[0] = head[:-2] + pieces[0]
    pieces[-1] += head[-2:]
    return b",".join(pieces)


class SingleWriteResponse(web.StreamResponse):
    """A response that is one socket write, for an answer without other headers on a connection that stays
    open."""

    def __init__(self, answer: HttpResponse) -> None:
        super().__init__(status=answer.status)
        self._answer = answer
        self._writer: AbstractStreamWriter | None = None

    @property
    def keep_alive(self) -> bool:
        return True

    @property
    def body_length(self) -> int:
        return len(self._answer.body)

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        self._writer = request.writer
        return self._writer

    async def write_eof(self, data: bytes = b"") -> None:
        assert self._writer is not None, "it is prepared first"
        if self._writer.output_size:  # the handler has sent it; aiohttp ends each response
            return
        answer = self._answer
        head = _response_head(answer.status, answer.content_type, int(time.time()))
        await self._writer.write_eof(b"%b%d\r\n\r\n%b" % (head, len(answer.body), answer.body))


@lru_cache(maxsize=32)
def _response_head(status: int, content_type: str, now_s: int) -> bytes:
    """Return the head of the response, up to the value of Content-Length."""
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {content_type}",
        f"Date: {formatdate(now_s, usegmt=True)}",
        f"Server: {SERVER_SOFTWARE}",
        "Content-Length: ",
    )
    return "\r\n".join(lines).encode("ascii")


async def send(request: web.BaseRequest, answer: HttpResponse, timeout_s: float = WRITE_S) -> web.StreamResponse:
    """Send a response. A long one is written here, except the part that fits the connection's buffer, since
    the server would copy it whole while the event loop is blocked. Raises ConnectionResetError if the client
    reads nothing for `timeout_s`."""
    if len(answer.body) < SINGLE_WRITE_BYTES:
        if request.keep_alive and request.version == HttpVersion11 and answer.retry_after_s is None:
            return SingleWriteResponse(answer)
        return to_response(answer)
    headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body))}
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    await write(response, answer.body, timeout_s)
    return await finish(response, timeout_s)


async def open_stream(request: web.Request, kind: str = NDJSON) -> web.StreamResponse:
    """Start a response whose parts are sent as they are produced."""
    headers = {"Content-Type": kind, "X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def write(response: web.StreamResponse, content: bytes, timeout_s: float = WRITE_S) -> None:
    """Write in chunks. Raises ConnectionResetError if the client does not read the previous chunk within
    `timeout_s`."""
    view = memoryview(content)
    for begin in range(0, len(view), CHUNK_BYTES):
        await _write_within(response.write(view[begin : begin + CHUNK_BYTES]), timeout_s)


async def finish(response: web.StreamResponse, timeout_s: float = WRITE_S) -> web.StreamResponse:
    """The response, with its end sent. Raises ConnectionResetError."""
    await _write_within(response.write_eof(), timeout_s)
    return response


async def _write_within(writing: Awaitable[None], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await writing
    except TimeoutError:
        raise ConnectionResetError("the client does not read its response") from None


def to_response(answer: HttpResponse) -> web.Response:
    headers = {} if answer.retry_after_s is None else {"Retry-After": str(answer.retry_after_s)}
    return web.Response(body=answer.body, status=answer.status, headers=headers, content_type=answer.content_type)


async def send_continue(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`. Raises HTTPExpectationFailed for any other expectation."""
    expected = request.headers.get("Expect", "")
    if request.version < HttpVersion11:
        return
    if expected.lower() != "100-continue":
        raise web.HTTPExpectationFailed(text=f"Expect is {expected[:60]!a}; send 100-continue, or none")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun


def client_gone_response(request: web.Request) -> web.Response:
    """Close the connection and return a response for a client that disconnected or does not read. If the
    handler raised the ConnectionError, aiohttp would log it with a traceback, as a bug of the server."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=GONE)
