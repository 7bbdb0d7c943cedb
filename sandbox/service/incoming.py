"""The bodies of requests, read whole and bounded: each by itself, and all that are under way together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from rocstar.sandbox.loopback.apart import Apart
from rocstar.sandbox.loopback.shares import NO_WEIGHTS, Shares
from rocstar.sandbox.pool.event_loop_priority import set_short_slice
from rocstar.sandbox.service.errors import Full, Refused, ServiceEnds, TooLarge
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.turns import Turns

D = TypeVar("D")

LARGE_BYTES = 1 << 22
"""From this on a body is put together beside the loop."""

SMALL_BYTES = 1 << 13
"""Up to this a body is decoded at once, if it has few items: that takes ten milliseconds at most."""

FEW_COMMAS = 500
"""More may be as many items that are wrong, each of which takes fifteen microseconds to be told of."""

MIDDLE_BYTES = 1 << 16
"""Up to this in a thread, where what the JSON parser holds the interpreter's lock for is a millisecond. What
is larger is decoded in another process, which takes some twenty microseconds a program more, and none of what
the scheduler gives the loop's session."""

DECODERS = 4
"""Owners whose bodies are decoded at the same time."""


class Incoming:
    """Invariant: `held_bytes` is the size of what has arrived of all bodies, complete or not, and was not yet
    let go of, at most `max_held_bytes`, of which each owner finds its share. After `end` nobody waits."""

    def __init__(
        self,
        *,
        max_bytes: int,
        max_held_bytes: int,
        timeout_s: float,
        apart: Apart,
        weights: Mapping[str, int] = NO_WEIGHTS,
    ) -> None:
        """
        Args:
            max_bytes: The largest body.
            max_held_bytes: The most of all bodies of requests under way.
            timeout_s: For a body to arrive, in seconds.
            apart: Where large bodies are decoded; closed with this.
            weights: Of the owners.
        """
        self._max_bytes = max_bytes
        self._shares = Shares(max_held_bytes, weights)
        self._timeout_s = timeout_s
        self._apart = apart
        self._beside = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode", initializer=set_short_slice)
        # By owner, while somebody has or wants it.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._waits: set[asyncio.Timeout] = set()
        self._ending = False

    @property
    def held_bytes(self) -> int:
        return self._shares.taken

    async def read(self, request: HttpRequest) -> bytes:
        """The body. Its size counts as held until `release`, for its text lives as long; the body itself is
        not kept in the request: what waits for programs holds only decoded calls. Raises Refused."""
        self.check_head(request)
        if request.content.is_eof():  # it came with its head, as a short one does
            body = request.content.read_nowait()
            self._hold(request, len(body))
            return body
        length = request.content_length
        self._check_held(length or 0, request.owner)
        chunks: list[bytes] = []
        try:
            async with self._wait(self._timeout_s):
                await self._take(request, chunks)
        except TimeoutError:
            message = f"the body did not arrive within {self._timeout_s:g} s"
            raise Refused(message, field="body", status=408, kind="slow_body") from None
        if len(chunks) == 1:
            return chunks[0]
        if sum(map(len, chunks)) < LARGE_BYTES:
            return b"".join(chunks)
        return await asyncio.to_thread(b"".join, chunks)

    def check_head(self, request: HttpRequest) -> None:
        """Raises Refused for a body that its head says is too large or encoded: nothing of it is read."""
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding != "identity":
            message = f"Content-Encoding is {encoding[:60]!r}; send the body as it is"
            raise Refused(message, field="Content-Encoding", status=415, kind="encoded_body")
        if (request.content_length or 0) > self._max_bytes:
            raise self._too_large()

    async def decoded(self, owner: str, body: bytes, decode: Callable[[bytes], D]) -> D:
        """What `decode` makes of it, or raises. A large body is decoded beside the loop, for which everybody
        waits; those of an owner one after the other, so that many do not keep another's waiting. See
        `Apart.call` for what `decode` may be."""
        if len(body) <= SMALL_BYTES and body.count(b",") <= FEW_COMMAS:
            return decode(body)
        async with self._wait(None):
            return await self._decoded_beside(owner, body, decode)

    async def _decoded_beside(self, owner: str, body: bytes, decode: Callable[[bytes], D]) -> D:
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(owner, asyncio.Lock())
        await turn.acquire()
        beside = decode if len(body) <= MIDDLE_BYTES else partial(self._apart.call, decode)
        decoding = self._beside.submit(beside, body)

        def ended(_: Future[D]) -> None:
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(turn.release)

        decoding.add_done_callback(
            ended
        )  # not before: a client that goes away does not end the thread's work
        return await asyncio.wrap_future(decoding)

    @asynccontextmanager
    async def _wait(self, timeout_s: float | None) -> AsyncIterator[None]:
        """What is waited for inside. Raises TimeoutError, or ServiceEnds where `end` came before."""
        if self._ending:
            raise ServiceEnds()
        try:
            async with asyncio.timeout(timeout_s) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if self._ending:
                raise ServiceEnds() from None
            raise

    def end(self) -> None:
        """What has not come, or is not decoded yet, is refused: of its calls nothing has run."""
        self._ending = True
        now = asyncio.get_running_loop().time()
        for wait in [wait for wait in self._waits if not wait.expired()]:
            wait.reschedule(now)

    def close(self) -> None:
        self._apart.close()
        self._beside.shutdown(wait=False, cancel_futures=True)

    def release(self, request: HttpRequest) -> None:
        """The request is answered. Also for one whose body was not read."""
        if size := request.held_bytes:
            request.held_bytes = 0
            self._shares.give(request.owner, size)

    def keep(self, request: HttpRequest) -> Callable[[], None]:
        """What is held of its body lives longer than the request: it counts until the returned is called."""
        size, owner = request.held_bytes, request.owner
        request.held_bytes = 0
        return partial(self._shares.give, owner, size)

    def _check_held(self, more_bytes: int, owner: str) -> None:
        if not self._shares.fits(owner, more_bytes):
            raise self._full()

    def _full(self) -> Full:
        held, most = self._shares.taken, self._shares.total
        return Full(f"programs of {held} bytes are in flight and at most {most} may be; ask again later")

    def _hold(self, request: HttpRequest, more_bytes: int) -> None:
        """So much more of its body has come."""
        if request.held_bytes + more_bytes > self._max_bytes:
            raise self._too_large()
        if not self._shares.try_take(request.owner, more_bytes):
            raise self._full()
        request.held_bytes += more_bytes

    async def _take(self, request: HttpRequest, chunks: list[bytes]) -> None:
        """All that comes, each piece counted as it does. It need not wait for any, so others have turns."""
        turns = Turns()
        while chunk := await request.content.readany():
            self._hold(request, len(chunk))
            chunks.append(chunk)
            if request.content.at_eof():
                return
            await turns.pause()

    def _too_large(self) -> TooLarge:
        message = f"the body is larger than the {self._max_bytes} bytes that this service takes"
        return TooLarge(message, field="body")
