"""The bodies of requests, read whole and bounded: each by itself, and all that are under way together."""

import asyncio

from aiohttp import web

from rocstar.sandbox.service.errors import Full, Refused, TooLarge


class Incoming:
    """Invariant: `held_bytes` is the size of what has arrived of all bodies, complete or not, and was not yet
    let go of, at most `max_held_bytes`."""

    def __init__(self, *, max_bytes: int, max_held_bytes: int, timeout_s: float) -> None:
        """
        Args:
            max_bytes: The largest body.
            max_held_bytes: The most of all bodies of requests under way.
            timeout_s: For a body to arrive, in seconds.
        """
        self._max_bytes = max_bytes
        self._max_held_bytes = max_held_bytes
        self._timeout_s = timeout_s
        self.held_bytes = 0
        self._sizes: dict[int, int] = {}  # by id(request), while it is handled

    async def read(self, request: web.Request) -> bytes:
        """The body. Its size counts as held until `release`, for its text lives as long; the body itself is
        not kept in the request: what waits for programs holds only decoded calls. Raises Refused."""
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding != "identity":
            message = f"Content-Encoding is {encoding[:60]!r}; send the body as it is"
            raise Refused(message, field="Content-Encoding", status=415, kind="encoded_body")
        self._check_held(request.content_length or 0)
        return await self._whole(request)

    def release(self, request: web.Request) -> None:
        """The request is answered. Also for one whose body was not read."""
        self.held_bytes -= self._sizes.pop(id(request), 0)

    def _check_held(self, more_bytes: int) -> None:
        held, most = self.held_bytes, self._max_held_bytes
        if held + more_bytes > most:
            raise Full(f"programs of {held} bytes are in flight and at most {most} may be; ask again later")

    async def _whole(self, request: web.Request) -> bytes:
        length = request.content_length
        if length is not None and length > self._max_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                while chunk := await request.content.readany():
                    size += len(chunk)
                    if size > self._max_bytes:
                        raise self._too_large()
                    self._check_held(len(chunk))
                    self.held_bytes += len(chunk)
                    self._sizes[id(request)] = size
                    chunks.append(chunk)
        except TimeoutError:
            message = f"the body did not arrive within {self._timeout_s:g} s"
            raise Refused(message, field="body", status=408, kind="slow_body") from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _too_large(self) -> TooLarge:
        message = f"the body is larger than the {self._max_bytes} bytes that this service takes"
        return TooLarge(message, field="body")
