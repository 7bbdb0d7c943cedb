"""A small HTTP/1.1 client: requests to one service over connections that are kept.

Invariant: a connection carries one request at a time, and is closed after a request that failed.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

DEFAULT_TIMEOUT_S = 300.0
LINE_BYTES = 1 << 20
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HttpError(Exception):
    """The connection broke, or the answer is not HTTP/1.1 as this client reads it."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """The next answer. HttpError if it breaks off or is not HTTP/1.1."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        status = int(head[0].split(" ")[1])
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return Answer(status, headers, await reader.readexactly(int(headers["content-length"])))
        parts = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, LookupError) as error:
        raise HttpError(f"unreadable answer: {error!r}") from None
    return Answer(status, headers, b"".join(parts))


class Client:
    """Requests to one service. Connections are opened as needed and kept for the next request."""

    def __init__(self, host: str, port: int, token: str = "") -> None:
        self._host, self._port = host, port
        self._authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        self._idle: list[Streams] = []

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def post(self, path: str, value: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Answer:
        return await self.request(self.head("POST", path, data := json.dumps(value).encode()) + data, timeout_s)

    async def get(self, path: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Answer:
        return await self.request(self.head("GET", path, b""), timeout_s)

    def head(self, method: str, path: str, body: bytes, *, length: int | None = None) -> bytes:
        """The head of a request; `length`: a false Content-Length."""
        size = len(body) if length is None else length
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{self._authorization}"
        kind = "Content-Type: application/json\r\n" if size else ""
        return f"{head}{kind}Content-Length: {size}\r\n\r\n".encode()

    async def request(self, data: bytes, timeout_s: float) -> Answer:
        async with asyncio.timeout(timeout_s):
            reader, writer = await self._connection()
            try:
                writer.write(data)
                answer = await read_answer(reader)
            except BaseException:  # cancelled, too: the next answer would be that of this request
                writer.close()
                raise
        if answer.headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))
        return answer

    async def _connection(self) -> Streams:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port, limit=LINE_BYTES)
