"""Idempotency keys: at most one execution per key, and one response for all requests with it.

    first request    --> starts the execution (a task of the store) and waits for it
    retry, running   --> waits for the same execution
    retry, finished  --> gets the stored response, for `ttl_s`

The execution does not belong to a connection: it continues while a request waits for it, and `grace_s` longer
for a client that lost its connection. Responses that a retry should not get again (rejections, failures of
the service) are not stored. The store is in memory: a restarted service knows no keys.
"""

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.http.responses import HttpResponse

MAX_KEY_CHARS = 255
FORGOTTEN_AT_ONCE = 512
"""The number of expired responses that are removed in one step; the rest is removed in the next loop
iteration."""

LONG_BYTES = 1 << 18
"""Longer bodies are hashed in a thread."""

OWNER_END = "\n"


Keep = Callable[[], Callable[[], None] | None]
"""A function that is called when an execution starts; its result is called when the execution has ended."""


@dataclass(eq=False)
class Execution:
    """One execution under a key. `lines`: the lines streamed so far; `count` receives their sizes. `on_end`:
    called when it has ended."""

    fingerprint: bytes
    count: Callable[[int], None]
    lines: list[bytes] = field(default_factory=list)
    task: asyncio.Task[HttpResponse] = field(init=False)
    waiters: int = 0
    size_bytes: int = 0
    ended_s: float = 0.0
    reaper: asyncio.TimerHandle | None = None
    on_end: Callable[[], None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def emit(self, line: bytes) -> None:
        self.lines.append(line)
        self.size_bytes += len(line)
        self.count(len(line))
        self.wake()

    def wake(self) -> None:
        """Wake those that wait for `changed`; later ones wait for the next change."""
        self.changed.set()
        self.changed = asyncio.Event()


Work = Callable[[Execution], Coroutine[Any, Any, HttpResponse]]


@dataclass(eq=False)
class IdempotencyStore:
    """streamed: the budget of the lines of running executions. hits: the number of requests whose key had an
    execution.

    Invariant: a key has at most one active execution; at most `max_keys` responses of at most the total of
    `streamed` are stored, except those about to be removed. Beyond that the owner with the largest share
    loses its oldest.
    """

    streamed: OwnerBudget
    _: KW_ONLY
    ttl_s: float = 600.0
    max_keys: int = 65_536
    grace_s: float = 30.0
    hits: int = 0
    _running: dict[str, Execution] = field(default_factory=dict)
    _ended: OrderedDict[str, Execution] = field(default_factory=OrderedDict)
    _ended_bytes: int = 0
    _of: Counter[str] = field(default_factory=Counter)  # the `_stored_size` of each owner's responses
    _keys_of: dict[str, OrderedDict[str, None]] = field(default_factory=dict)  # their keys, oldest first
    _forgetting: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    async def run_once(self, key: str, fingerprint: bytes, work: Work, keep: Keep = lambda: None) -> HttpResponse:
        """Return the response for `key`, from `work` if there is none. Raises RequestError if the key was
        used for another request, and the errors of `work`. `keep`: holds the request's body for `work`."""
        with self._attached(key, fingerprint, work, keep) as execution:
            return await asyncio.shield(execution.task)

    async def follow(
        self, key: str, fingerprint: bytes, work: Work, keep: Keep = lambda: None
    ) -> AsyncIterator[bytes]:
        """Do as `run_once` for work that streams: yields its lines from the first one on."""
        with self._attached(key, fingerprint, work, keep) as execution:
            position = 0
            while True:
                while position < len(execution.lines):
                    position += 1
                    yield execution.lines[position - 1]
                if execution.task.done():
                    execution.task.result()
                    return
                await execution.changed.wait()

    @contextmanager
    def _attached(self, key: str, fingerprint: bytes, work: Work, keep: Keep) -> Iterator[Execution]:
        execution = self._find(key, fingerprint)
        if execution is None:
            execution = Execution(fingerprint, partial(self.streamed.take, _key_owner(key)))
            self._running[key] = execution
            execution.task = asyncio.create_task(work(execution))
            execution.task.add_done_callback(partial(self._end, key, execution))
            execution.on_end = keep()
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
            if execution.waiters == 0 and not execution.task.done():
                loop = asyncio.get_running_loop()
                execution.reaper = loop.call_later(self.grace_s, execution.task.cancel)

    def _find(self, key: str, fingerprint: bytes) -> Execution | None:
        self._expire()
        ended = self._ended.get(key)
        if ended is not None and (self._is_old(ended) or not ended.task.result().is_current()):
            self._forget(key)
        execution = self._running.get(key) or self._ended.get(key)
        if execution is not None and execution.fingerprint != fingerprint:
            shown = key.rpartition(OWNER_END)[2][:60]
            raise RequestError(
                f"the idempotency key {shown!r} was used for another request; give each request its own",
                field="Idempotency-Key",
                status=422,
                kind="idempotency_key_reused",
            )
        return execution

    def _end(self, key: str, execution: Execution, task: "asyncio.Task[HttpResponse]") -> None:
        del self._running[key]
        if execution.on_end is not None:
            execution.on_end()
        owner = _key_owner(key)
        self.streamed.give(owner, execution.size_bytes)
        if execution.reaper is not None:
            execution.reaper.cancel()
        execution.wake()
        if task.cancelled() or task.exception() is not None or not task.result().keep:
            return
        execution.size_bytes += len(task.result().body)
        execution.ended_s = asyncio.get_running_loop().time()
        self._ended[key] = execution
        self._ended_bytes += execution.size_bytes
        self._of[owner] += _stored_size(execution)
        self._keys_of.setdefault(owner, OrderedDict())[key] = None
        self._expire()

    def _expire(self) -> None:
        """Remove expired responses, then the oldest of the largest owner while there are too many; a limited
        number per call."""
        for _ in range(FORGOTTEN_AT_ONCE):
            oldest = next(iter(self._ended), None)
            if oldest is None:
                return
            if not self._is_old(self._ended[oldest]):
                if len(self._ended) <= self.max_keys and self._ended_bytes <= self.streamed.total:
                    return
                oldest = next(iter(self._keys_of[max(self._of, key=self._of.__getitem__)]))
            self._forget(oldest)
        if self._forgetting is None:

            def expire_more() -> None:
                self._forgetting = None
                self._expire()

            self._forgetting = asyncio.get_running_loop().call_soon(expire_more)

    def _is_old(self, execution: Execution) -> bool:
        return execution.ended_s <= asyncio.get_running_loop().time() - self.ttl_s

    def _forget(self, key: str) -> None:
        execution = self._ended.pop(key)
        self._ended_bytes -= execution.size_bytes
        owner = _key_owner(key)
        self._of[owner] -= _stored_size(execution)
        del self._keys_of[owner][key]
        if not self._keys_of[owner]:
            del self._of[owner], self._keys_of[owner]

    async def close(self) -> None:
        """Cancel all executions."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        tasks = [execution.task for execution in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key_owner(key: str) -> str:
    return key.rpartition(OWNER_END)[0]


def _stored_size(execution: Execution) -> int:
    """Return the size of the stored response, with its overhead."""
    return execution.size_bytes + 1024


def owner_key(owner: str, key: str) -> str:
    """Return the key within its owner's namespace. Raises RequestError for an invalid key."""
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise RequestError(
            f"Idempotency-Key has {len(key)} characters; give 1 to {MAX_KEY_CHARS} printable ASCII ones",
            field="Idempotency-Key",
        )
    return f"{owner}{OWNER_END}{key}"


async def compute_fingerprint(path: str, body: bytes, stream: bool) -> bytes:
    """Return the digest of a request, to compare with other requests of the key."""
    if len(body) < LONG_BYTES:
        return _compute_digest(path, body, stream)
    return await asyncio.to_thread(_compute_digest, path, body, stream)


def _compute_digest(path: str, body: bytes, stream: bool) -> bytes:
    digest = hashlib.blake2b(body, digest_size=16, person=b"stream" if stream else b"whole")
    digest.update(b"\0" + path.encode("utf-8", "surrogatepass"))
    return digest.digest()
