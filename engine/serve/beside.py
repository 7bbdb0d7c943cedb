"""Work in proportion to a body, outside the event loop: reading JSON, templates, tokenising.

    body ──small──> read here
         ──large──> a process (apart.py): the JSON parser holds the interpreter's lock for a whole body
    order, ids, text ──> a thread; tokenizers release the lock

At most `THREADS` pieces of work run and `MAX_WAITING` wait; a request waits `WORK_S` at most. A thread cannot
be interrupted: `Bounds` limits the work of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from pydantic import BaseModel

from rocstar.engine.serve.bounds import Bounds, read_within
from rocstar.engine.serve.refusals import ServeRefusal
from rocstar.sandbox.loopback.apart import Apart
from rocstar.sandbox.types import SandboxError

THREADS = 4
MAX_WAITING = 256
WORK_S = 60.0
SMALL_BYTES, FEW_ITEMS = 1 << 16, 1000
"""A body of at most so many bytes and commas takes about a millisecond to read, or to refuse."""

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")
T = TypeVar("T")


class Beside:
    """The threads and processes of one endpoint. Invariant: `close` leaves none that waits."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="requests")
        self._apart = Apart(bounds, ServeRefusal)
        self._in_flight = 0

    def close(self) -> None:
        """End the processes; the threads end with what they do now."""
        self._apart.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def read(self, model: type[M], body: bytes) -> M:
        """The body as the model, within the bounds. ServeRefusal names what is wrong."""
        reading = partial(read_within, model=model, bounds=self._bounds)
        if len(body) <= SMALL_BYTES and body.count(b",") <= FEW_ITEMS:
            return reading(body)
        try:
            return await self.run(self._apart.call, reading, body)
        except SandboxError as error:
            raise ServeRefusal(
                f"the body was not read: {error}; ask again", status=503, code="busy"
            ) from None

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns or raises, in a thread. ServeRefusal if too much waits, or it is late."""
        if self._in_flight >= THREADS + MAX_WAITING:
            raise ServeRefusal(
                f"{self._in_flight} requests are being read; ask again later", status=429, code="queue_full"
            )
        self._in_flight += 1
        loop = asyncio.get_running_loop()
        doing = self._threads.submit(work, *args, **kwargs)
        doing.add_done_callback(lambda _: _call_soon(loop, self._ended))
        try:
            async with asyncio.timeout(WORK_S):
                return await asyncio.wrap_future(doing)
        except TimeoutError:
            raise ServeRefusal(
                f"the request was not read within {WORK_S:g} s; ask again later", status=503, code="busy"
            ) from None

    def _ended(self) -> None:
        self._in_flight -= 1


def _call_soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """From any thread; nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(work)
    except RuntimeError:
        return
