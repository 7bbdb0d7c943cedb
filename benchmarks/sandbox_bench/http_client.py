"""A lean HTTP/1.1 client on asyncio, so that the load generator costs the measured machine little.

    request() -> idle connection or a new one -> one request, one answer -> back to the idle ones

Invariant: a connection carries one request at a time. Every request has a time limit; a connection whose
request failed or timed out is closed, never used again.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, cast

DEFAULT_TIMEOUT_S = 300.0


class HttpError(Exception):
    """The connection broke, or the answer is not HTTP/1.1 as this client reads it."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self.reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(HttpError(f"the connection closed before the answer: {error}"))

    def send(self, data: bytes) -> asyncio.Future[Answer]:
        assert self._transport is not None and (self._answer is None or self._answer.done())
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._answer

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            answer = self._parse()
        except (ValueError, IndexError) as error:
            self.close()
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(HttpError(f"unreadable answer: {error}"))
            return
        if answer is not None and self._answer is not None and not self._answer.done():
            self.reusable = answer.headers.get("connection", "").lower() != "close"
            self._answer.set_result(answer)

    def _parse(self) -> Answer | None:
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return None
            self._head = _parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
        status, headers = self._head
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = _take_chunks(self._buffer)
        else:
            body = _take(self._buffer, int(headers.get("content-length", "0")))
        if body is None:
            return None
        self._head = None
        return Answer(status, headers, body)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return int(first.split(" ")[1]), {name.strip().lower(): value.strip() for name, value in pairs}


def _take(buffer: bytearray, length: int) -> bytes | None:
    if len(buffer) < length:
        return None
    body = bytes(buffer[:length])
    del buffer[:length]
    return body


def _take_chunks(buffer: bytearray) -> bytes | None:
    """The joined body once its last chunk is there, else None and the buffer as it was."""
    if not buffer.endswith(b"0\r\n\r\n"):  # spares reading all chunks again for each piece
        return None
    at, parts = 0, []
    while True:
        line_end = buffer.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(buffer[at:line_end].split(b";")[0], 16)
        at = line_end + 2
        if size == 0:
            del buffer[: at + 2]
            return b"".join(parts)
        if at + size + 2 > len(buffer):
            return None
        parts.append(bytes(buffer[at : at + size]))
        at += size + 2


class Client:
    """Requests to one service. Connections are opened as needed and kept for the next request."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._idle: list[_Connection] = []

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def post(self, path: str, value: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Answer:
        return await self.request("POST", path, json.dumps(value).encode(), timeout_s=timeout_s)

    async def get(self, path: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Answer:
        return await self.request("GET", path, b"", timeout_s=timeout_s)

    async def request(self, method: str, path: str, body: bytes, *, timeout_s: float) -> Answer:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        connection = await self._connection()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await connection.send(head.encode() + b"\r\n" + body)
        except BaseException:  # cancelled too: what it still answers belongs to nobody
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        return answer

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(_Connection, self._host, self._port)
        return protocol
