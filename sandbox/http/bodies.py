"""Bounded reading of bodies: the size of each; of requests also the total of all, and the time to arrive."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from aiohttp import StreamReader

from rocstar.sandbox.http.decode_process import DecodePool
from rocstar.sandbox.http.errors import RequestError, shutting_down
from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.http.routes import HttpRequest
from rocstar.sandbox.pool.event_loop_priority import set_short_slice

MAX_HOLD_S = 0.0005
"""A call of another client waits several times for up to this long: to arrive, to be sent, to be answered."""


async def read_at_most(content: StreamReader, most: int) -> bytes:
    """Return the body of another server's answer. ValueError for more than `most` bytes."""
    read = bytearray()
    async for chunk in content.iter_any():
        read += chunk
        if len(read) > most:
            raise ValueError(f"an answer of more than {most} bytes")
    return bytes(read)


@dataclass(eq=False)
class LoopYielder:
    """Invariant: between two returns of `pause` that did not wait the loop was held for less than `piece_s`,
    besides the one piece that went beyond it."""

    piece_s: float = MAX_HOLD_S
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._since_s = self.clock()

    async def pause(self) -> None:
        """After each piece: gives others a turn if it is time."""
        if self.clock() - self._since_s >= self.piece_s:
            await asyncio.sleep(0)
            self._since_s = self.clock()


D = TypeVar("D")
LARGE_BYTES = 1 << 22
"""Larger bodies are joined outside the event loop."""

INLINE_BYTES = 1 << 13
"""Bodies up to this size and with few items are decoded in the event loop, in ten milliseconds at most."""

INLINE_COMMAS = 500
"""Each comma may be an invalid item, and describing one takes 15 µs."""

THREAD_BYTES = 1 << 16
"""Bodies up to this size are decoded in a thread, where the JSON parser holds the interpreter's lock for a
millisecond. Larger ones are decoded in another process: that costs 20 µs more per program, but no CPU time of
the event loop's session."""

DECODERS = 4
"""Owners whose bodies are decoded at the same time."""


class IncomingBody(Protocol):
    """A request whose body arrives, such as `HttpRequest`. `held_bytes`: the received bytes that count as
    held. `content`: has the methods of aiohttp's StreamReader that are used here."""

    owner: str
    held_bytes: int

    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> Any: ...
    @property
    def content_length(self) -> int | None: ...


@dataclass(eq=False, kw_only=True)
class BodyReader:
    """Reads and decodes bodies.

    Args:
        max_bytes: the maximum size of a body.
        held: the budget of all bodies of active requests.
        timeout_s: the time for a body to arrive.
        decode_pool: decodes large bodies; `close` closes it.

    Invariant: `held.taken` is the size of all received parts of bodies that are not released. After `end` no
    request waits.
    """

    max_bytes: int
    held: OwnerBudget
    timeout_s: float
    decode_pool: DecodePool
    # By owner, while a request holds or awaits it.
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _waits: set[asyncio.Timeout] = field(default_factory=set)
    _ending: bool = False

    def __post_init__(self) -> None:
        self._beside = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode", initializer=set_short_slice)

    async def parse(self, request: HttpRequest, decode: Callable[[bytes], D]) -> D:
        """Read and decode the body. See `read` and `decode`."""
        return await self.decode(request.owner, await self.read(request), decode)

    async def read(self, request: IncomingBody) -> bytes:
        """Return the body. Its size counts as held until `release`, because the decoded text lives as long;
        the request does not keep the body itself. Raises RequestError."""
        self.check_head(request)
        if request.content.is_eof():  # a short body arrives with its head
            body: bytes = request.content.read_nowait()
            self._hold(request, len(body))
            return body
        if not self.held.fits(request.owner, request.content_length or 0):
            raise self._full()
        chunks: list[bytes] = []
        yielder = LoopYielder()
        try:
            async with self._wait(self.timeout_s):
                while chunk := await request.content.readany():
                    self._hold(request, len(chunk))
                    chunks.append(chunk)
                    if request.content.at_eof():
                        break
                    await yielder.pause()  # data that has already arrived does not wait
        except TimeoutError:
            message = f"the body did not arrive within {self.timeout_s:g} s"
            raise RequestError(message, field="body", status=408, kind="slow_body") from None
        if len(chunks) == 1:
            return chunks[0]
        if sum(map(len, chunks)) < LARGE_BYTES:
            return b"".join(chunks)
        return await asyncio.to_thread(b"".join, chunks)

    def check_head(self, request: IncomingBody) -> None:
        """Raise RequestError for a body that is too large or encoded by its head, before it is read."""
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding != "identity":
            message = f"Content-Encoding is {encoding[:60]!r}; send the body as it is"
            raise RequestError(message, field="Content-Encoding", status=415, kind="encoded_body")
        if (request.content_length or 0) > self.max_bytes:
            raise self._too_large()

    async def decode(self, owner: str, body: bytes, decode: Callable[[bytes], D]) -> D:
        """Return the result of `decode`, or raise its error. A large body is decoded outside the event loop;
        the bodies of one owner are decoded one after another, so that they do not delay other owners. See
        `DecodePool.call` for the requirements of `decode`."""
        if len(body) <= INLINE_BYTES and body.count(b",") <= INLINE_COMMAS:
            return decode(body)
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(owner, asyncio.Lock())

        def end_turn(_: Future[D]) -> None:
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(turn.release)

        async with self._wait(None):
            await turn.acquire()
            beside = decode if len(body) <= THREAD_BYTES else partial(self.decode_pool.call, decode)
            decoding = self._beside.submit(beside, body)
            # Not before: the thread continues when a client disconnects.
            decoding.add_done_callback(end_turn)
            return await asyncio.wrap_future(decoding)

    @asynccontextmanager
    async def _wait(self, timeout_s: float | None) -> AsyncIterator[None]:
        """A deadline for the block. Raises TimeoutError, or RequestError if `end` was called."""
        if self._ending:
            raise shutting_down()
        try:
            async with asyncio.timeout(timeout_s) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if self._ending:
                raise shutting_down() from None
            raise

    def end(self) -> None:
        """Reject the bodies that have not arrived or are not decoded yet; none of their calls has run."""
        self._ending = True
        now = asyncio.get_running_loop().time()
        for wait in [wait for wait in self._waits if not wait.expired()]:
            wait.reschedule(now)

    def close(self) -> None:
        self.decode_pool.close()
        self._beside.shutdown(wait=False, cancel_futures=True)

    def release(self, request: IncomingBody) -> None:
        """The request is answered. Also for one whose body was not read."""
        if size := request.held_bytes:
            request.held_bytes = 0
            self.held.give(request.owner, size)

    def keep(self, request: HttpRequest) -> Callable[[], None]:
        """Keep the body counted beyond the end of its request, until the returned function is called."""
        size, owner = request.held_bytes, request.owner
        request.held_bytes = 0
        return partial(self.held.give, owner, size)

    def _full(self) -> RequestError:
        held, most = self.held.taken, self.held.total
        message = f"programs of {held} bytes are in flight and at most {most} may be; ask again later"
        return RequestError(message, kind="full")

    def _hold(self, request: IncomingBody, more_bytes: int) -> None:
        """Count received bytes of the body."""
        if request.held_bytes + more_bytes > self.max_bytes:
            raise self._too_large()
        if not self.held.try_take(request.owner, more_bytes):
            raise self._full()
        request.held_bytes += more_bytes

    def _too_large(self) -> RequestError:
        message = f"the body is larger than the {self.max_bytes} bytes that this service takes"
        return RequestError(message, field="body", kind="too_large")
