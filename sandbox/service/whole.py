"""An answer that is there whole, written at once.

    head (the same for a second, but for the length) + body --> one write --> the client

aiohttp's own `Response` collects headers for whatever a server may want to say, and then writes them. This
one says what every answer of the service says: what it is, how long, when, and by whom.
"""

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE

from rocstar.sandbox.service.idempotency import HttpAnswer


def can_be_whole(request: web.BaseRequest, answer: HttpAnswer) -> bool:
    """Whether nothing more is to be said: to a client that may ask again, and need not wait with it."""
    return answer.retry_after_s is None and request.keep_alive and request.version == HttpVersion11


class Whole(web.StreamResponse):
    """Of an answer and a request for which `can_be_whole`."""

    def __init__(self, answer: HttpAnswer) -> None:
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
        answer = self._answer
        head = _head(answer.status, answer.content_type, int(time.time()))
        await self._writer.write_eof(b"%b%d\r\n\r\n%b" % (head, len(answer.body), answer.body))


@lru_cache(maxsize=32)
def _head(status: int, content_type: str, now_s: int) -> bytes:
    """All but the length itself."""
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {content_type}",
        f"Date: {formatdate(now_s, usegmt=True)}",
        f"Server: {SERVER_SOFTWARE}",
        "Content-Length: ",
    )
    return "\r\n".join(lines).encode("ascii")
