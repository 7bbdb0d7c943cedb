"""A one-pass stream of weights in buckets: a thread gathers them, a coroutine sends them.

    learner's thread: put(bucket) ──handed over──> event loop: async for bucket in stream ──> servers
                      outcome()   <── settle ───── who serves them

`put` waits until its bucket is taken, so that the next one is gathered while this one is sent, with two in
memory at a time; the consumer waits for the next bucket. A consumer that stops releases the stream: `put`
then returns immediately, also while the event loop stands still, because the gathering is a collective that
must complete, and a closing loop waits for it. `outcome` waits for the servers, whose every call has a
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from threading import Lock
from typing import TYPE_CHECKING

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.weights import DiskWeights, Shapes

if TYPE_CHECKING:
    from torch import Tensor

Bucket = list[tuple[str, "Tensor"]]


def in_buckets(sizes: Mapping[str, int], bucket_bytes: int) -> list[list[str]]:
    """Split names in order into buckets of up to `bucket_bytes`; a larger tensor is a bucket by itself."""
    made: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not made or size > room:
            made.append([])
            room = bucket_bytes
        made[-1].append(name)
        room -= size
    return made


class WeightStream:
    """A one-pass `WeightSource`. Made on the consumer's event loop.

    Invariants: an iteration that ends without an error has yielded every tensor of `shapes` once, in order;
    the stream keeps no reference to a taken bucket; `put` does not wait after the stream is released.
    """

    def __init__(self, shapes: Shapes, *, kept: DiskWeights) -> None:
        """`kept`: the same weights as files, for who missed them; they may still be on their way."""
        self._loop = asyncio.get_running_loop()
        self._shapes, self._kept = dict(shapes), kept
        self._left = list(reversed(self._shapes))
        self._offered: tuple[Bucket, Future[None]] | None = None
        self._news = asyncio.Event()
        self._is_over = self._is_let_go = False
        self._lock = Lock()
        """The lock for the two fields that both threads write."""
        self._putting: Future[None] | None = None
        self._settled: Future[bool] = Future()

    # ---- the thread that gathers ----

    def put(self, bucket: Bucket) -> None:
        """Pass the next tensors to the consumer; return when they are taken, or the stream is released."""
        taken: Future[None] = Future()
        with self._lock:
            if self._is_let_go:
                return
            self._putting = taken
        if self._call_soon(lambda: self._offer(bucket, taken)):
            taken.result()

    def end(self) -> None:
        """No more will come."""
        self._call_soon(self._end)

    def outcome(self) -> bool:
        """Whether they are served; False: by some not before the files are there. Raises why they are not."""
        return self._settled.result()

    def _call_soon(self, callback: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: there is no consumer
            return False
        return True

    # ---- the event loop ----

    def _offer(self, bucket: Bucket, taken: Future[None]) -> None:
        if not taken.done():
            self._offered = bucket, taken
            self._news.set()

    def _end(self) -> None:
        self._is_over = True
        self._news.set()

    def __aiter__(self) -> WeightStream:
        return self

    async def __anext__(self) -> Bucket:
        """InferenceError(broadcast_failed): they did not come whole, or in another order."""
        if not self._left:
            raise StopAsyncIteration
        while self._offered is None:
            if self._is_over or self._is_let_go:
                raise InferenceError("broadcast_failed", f"{len(self._left)} tensors did not come", retryable=True)
            self._news.clear()
            await self._news.wait()
        (bucket, taken), self._offered = self._offered, None
        taken.set_result(None)
        for name, tensor in bucket:
            if not self._left or self._left.pop() != name or self._shapes[name] != tuple(tensor.shape):
                raise InferenceError("broadcast_failed", f"{name} is not what was announced", retryable=True)
        return bucket

    def let_go(self) -> None:
        """No more is wanted: whatever still comes is dropped."""
        with self._lock:
            self._is_let_go, putting = True, self._putting
        self._offered = None
        self._news.set()
        if putting is not None and not putting.done():
            putting.set_result(None)

    def abandon(self) -> None:
        """Whoever was to serve them is done, if perhaps before it began."""
        self.let_go()
        self.settle(False, InferenceError("broadcast_failed", "no server takes them any more", retryable=True))

    def settle(self, served: bool, error: BaseException | None = None) -> None:
        """Set the outcome. Only the first call has an effect."""
        try:
            if error is None:
                self._settled.set_result(served)
            else:
                self._settled.set_exception(error)
        except InvalidStateError:
            return

    async def files(self) -> DiskWeights:
        """The same weights as files, as soon as they are there. The outcome is that they are waited for.

        InferenceError(weights_behind): they will not come.
        """
        self.let_go()
        self.settle(False)
        try:
            await asyncio.to_thread(self._kept.shapes)
        except (OSError, ValueError) as error:
            raise InferenceError("weights_behind", f"{self._kept.path}: {error}", retryable=True) from error
        return self._kept

    # ---- as a source ----

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self._shapes)

    def tensor(self, name: str) -> Tensor:
        """One tensor out of turn comes from the files, when they are there."""
        return self._kept.tensor(name)
