"""At most one execution per idempotency key, and one answer to all who ask with it.

    first request  --> starts the execution (a task of the store's) and waits for it
    retry, running --> waits for the same execution
    retry, ended   --> gets the kept answer, for `ttl_s`

The execution does not belong to a connection: it goes on while somebody waits, and `grace_s` longer for a
client that lost its connection and comes back. Answers that a retry should get anew (a refusal, a failure of
ours) are not kept. All of it lives in memory: a restarted service knows no keys.
"""

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from rocstar.sandbox.loopback.shares import NO_WEIGHTS, Shares
from rocstar.sandbox.service.errors import Refused

MAX_KEY_CHARS = 255

FORGOTTEN_AT_ONCE = 512
"""Answers whose time is over, or for which there is no room; the rest is, after others had a turn."""

LONG_BYTES = 1 << 18
"""From so many on a body is gone through beside the loop."""


OWNER_END = "\n"


def _always() -> bool:
    return True


def _nothing() -> None:
    pass


Keep = Callable[[], Callable[[], None]]
"""Called when an execution starts: what it returns is called when that has ended."""


def _nothing_kept() -> Callable[[], None]:
    return _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What an HTTP response will carry. keep: whether a retry by key gets it again. stands: whether what it
    tells of is still there, asked before it is given again."""

    status: int
    body: bytes
    content_type: str = "application/json"
    keep: bool = True
    stands: Callable[[], bool] = _always
    retry_after_s: int | None = None


class Execution:
    """One piece of work under a key. `lines`: what it has streamed so far; `count` is told of their bytes.
    `let_go`: called when it has ended."""

    def __init__(self, fingerprint: bytes, count: Callable[[int], None] = lambda size: None) -> None:
        self.fingerprint = fingerprint
        self._count = count
        self.lines: list[bytes] = []
        self.task: asyncio.Task[HttpAnswer] | None = None
        self.waiters = 0
        self.size_bytes = 0
        self.ended_s = 0.0
        self.reaper: asyncio.TimerHandle | None = None
        self.let_go: Callable[[], None] = _nothing
        self._changed: asyncio.Future[None] | None = None

    def emit(self, line: bytes) -> None:
        self.lines.append(line)
        self.size_bytes += len(line)
        self._count(len(line))
        self.wake()

    def wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def changed(self) -> None:
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)


Work = Callable[[Execution], Awaitable[HttpAnswer]]


class IdempotencyStore:
    """Invariant: a key has at most one execution under way; at most `max_keys` answers of together at most
    `max_bytes` are kept, but for what is about to be forgotten; beyond that the owner with most of them loses
    its oldest."""

    def __init__(
        self,
        *,
        ttl_s: float = 600.0,
        max_keys: int = 65_536,
        max_bytes: int = 256 << 20,
        grace_s: float = 30.0,
        weights: Mapping[str, int] = NO_WEIGHTS,
    ) -> None:
        self._ttl_s = ttl_s
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._grace_s = grace_s
        self._running: dict[str, Execution] = {}
        self._ended: OrderedDict[str, Execution] = OrderedDict()
        self._ended_bytes = 0
        self._of: Counter[str] = Counter()  # what each owner has of them, by `_weight_of`
        self._keys_of: dict[str, OrderedDict[str, None]] = {}  # and in which order
        self._said = Shares(max_bytes, weights)
        self._forgetting: asyncio.Handle | None = None
        self.hits = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    def full(self, owner: str) -> bool:
        """Whether what streams under keys have said, of those that still run, leaves `owner` no room."""
        return not self._said.fits(owner, 0)

    async def once(self, key: str, fingerprint: bytes, work: Work, keep: Keep = _nothing_kept) -> HttpAnswer:
        """The answer to `key`, from `work` if nobody did it yet. Raises Refused when the key stands for
        another request, and whatever `work` raises. `keep`: for what `work` has of its request."""
        with self._attached(key, fingerprint, work, keep) as execution:
            assert execution.task is not None
            return await asyncio.shield(execution.task)

    async def follow(
        self, key: str, fingerprint: bytes, work: Work, keep: Keep = _nothing_kept
    ) -> AsyncIterator[bytes]:
        """Do as `once` for work that streams: yields its lines from the first one on."""
        with self._attached(key, fingerprint, work, keep) as execution:
            assert execution.task is not None
            position = 0
            while True:
                while position < len(execution.lines):
                    position += 1
                    yield execution.lines[position - 1]
                if execution.task.done():
                    execution.task.result()
                    return
                await execution.changed()

    @contextmanager
    def _attached(self, key: str, fingerprint: bytes, work: Work, keep: Keep) -> Iterator[Execution]:
        execution = self._find(key, fingerprint)
        if execution is None:
            execution = self._start(key, fingerprint, work)
            execution.let_go = keep()
        else:
            self.hits += 1
        execution.waiters += 1
        if execution.reaper is not None:
            execution.reaper.cancel()
            execution.reaper = None
        try:
            yield execution
        finally:
            execution.waiters -= 1
            assert execution.task is not None
            if execution.waiters == 0 and not execution.task.done():
                loop = asyncio.get_running_loop()
                execution.reaper = loop.call_later(self._grace_s, execution.task.cancel)

    def _find(self, key: str, fingerprint: bytes) -> Execution | None:
        self._expire()
        execution = self._running.get(key) or self._ended.get(key)
        if (
            execution is not None
            and key in self._ended
            and (self._is_old(execution) or not _stands(execution))
        ):
            self._forget(key)
            execution = None
        if execution is not None and execution.fingerprint != fingerprint:
            shown = key.rpartition(OWNER_END)[2][:60]
            raise Refused(
                f"the idempotency key {shown!r} was used for another request; give each request its own",
                field="Idempotency-Key",
                status=422,
                kind="idempotency_key_reused",
            )
        return execution

    def _start(self, key: str, fingerprint: bytes, work: Work) -> Execution:
        execution = Execution(fingerprint, partial(self._said.take, _owner_of(key)))
        self._running[key] = execution

        async def execute() -> HttpAnswer:
            return await work(execution)

        execution.task = asyncio.create_task(execute())
        execution.task.add_done_callback(lambda task: self._end(key, execution, task))
        return execution

    def _end(self, key: str, execution: Execution, task: "asyncio.Task[HttpAnswer]") -> None:
        del self._running[key]
        execution.let_go()
        self._said.give(_owner_of(key), execution.size_bytes)
        if execution.reaper is not None:
            execution.reaper.cancel()
        execution.wake()
        if task.cancelled() or task.exception() is not None or not task.result().keep:
            return
        execution.size_bytes += len(task.result().body)
        self._keep(key, execution)
        self._expire()

    def _keep(self, key: str, execution: Execution) -> None:
        execution.ended_s = asyncio.get_running_loop().time()
        owner = _owner_of(key)
        self._ended[key] = execution
        self._ended_bytes += execution.size_bytes
        self._of[owner] += _weight_of(execution)
        self._keys_of.setdefault(owner, OrderedDict())[key] = None

    def _expire(self) -> None:
        """Forgets what is too old, then the oldest of who has most while there is too much; a few of them."""
        for _ in range(FORGOTTEN_AT_ONCE):
            oldest = next(iter(self._ended), None)
            if oldest is None:
                return
            if not self._is_old(self._ended[oldest]):
                if len(self._ended) <= self._max_keys and self._ended_bytes <= self._max_bytes:
                    return
                oldest = next(iter(self._keys_of[max(self._of, key=self._of.__getitem__)]))
            self._forget(oldest)
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_soon(self._expire_more)

    def _expire_more(self) -> None:
        self._forgetting = None
        self._expire()

    def _is_old(self, execution: Execution) -> bool:
        return execution.ended_s <= asyncio.get_running_loop().time() - self._ttl_s

    def _forget(self, key: str) -> None:
        execution = self._ended.pop(key)
        self._ended_bytes -= execution.size_bytes
        owner = _owner_of(key)
        self._of[owner] -= _weight_of(execution)
        del self._keys_of[owner][key]
        if not self._keys_of[owner]:
            del self._of[owner], self._keys_of[owner]

    async def close(self) -> None:
        """Ends what still runs."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        tasks = [execution.task for execution in self._running.values() if execution.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _owner_of(key: str) -> str:
    return key.rpartition(OWNER_END)[0]


def _weight_of(execution: Execution) -> int:
    """Of what is kept: its bytes, and those of keeping it."""
    return execution.size_bytes + 1024


def _stands(execution: Execution) -> bool:
    assert execution.task is not None
    return execution.task.result().stands()


def key_of(owner: str, key: str) -> str:
    """The key as the store knows it: each owner has its own. Raises Refused for one that is no use."""
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise Refused(
            f"Idempotency-Key has {len(key)} characters; give 1 to {MAX_KEY_CHARS} printable ASCII ones",
            field="Idempotency-Key",
        )
    return f"{owner}{OWNER_END}{key}"


async def fingerprint_of(path: str, body: bytes, stream: bool) -> bytes:
    """Of a request, which a key stands for."""
    if len(body) < LONG_BYTES:
        return _digest_of(path, body, stream)
    return await asyncio.to_thread(_digest_of, path, body, stream)


def _digest_of(path: str, body: bytes, stream: bool) -> bytes:
    digest = hashlib.blake2b(body, digest_size=16, person=b"stream" if stream else b"whole")
    digest.update(b"\0" + path.encode("utf-8", "surrogatepass"))
    return digest.digest()
