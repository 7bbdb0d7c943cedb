"""The connection of a client or a worker to its Redis: URL and health.

All tasks of one client or worker share a `RedisConnection`. Each reports success and failure; the connection
tracks since when Redis has been silent, so that waiting ends in an error that names the reason.
"""

import asyncio
import math
import os
import random
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rocstar.sandbox.types import SandboxError

T = TypeVar("T")

PREFIX = "rocstar:fabric:3"
"""The prefix of all keys; its last part is the version of the formats."""

ANSWER_TIMEOUT_S = 5.0
"""The timeout of a command. No command blocks longer than `BLOCK_MS`."""

BLOCK_MS = 1_000

FIRST_DELAY_S, LONGEST_DELAY_S = 0.05, 0.5

LONGEST_STEP_S = BLOCK_MS / 1000 + ANSWER_TIMEOUT_S + LONGEST_DELAY_S
"""A task that waits for Redis reports success or failure at least this often."""

NOTE_S = 0.2
"""Shorter failures, for example a closed connection, are not noted."""

REDIS_ERRORS = (exceptions.RedisError, OSError)
"""Errors of a server that is unreachable, starting, full or misconfigured: retried, then reported."""

REFUSALS = (exceptions.AuthenticationError, exceptions.NoPermissionError)

OLDEST = (7, 0)
"""The oldest supported version. Earlier ones return a deleted entry when it is claimed."""


def unique_name() -> str:
    """Return a new id for a client or a worker."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"


def make_ref(flavour: str, stream_id: str) -> str:
    return f"{flavour}/{stream_id}"


def split_refs(refs: Iterable[str]) -> dict[str, list[str]]:
    """Group refs into stream ids by flavour."""
    by_flavour: dict[str, list[str]] = {}
    for ref in refs:
        flavour, _, stream_id = ref.rpartition("/")
        by_flavour.setdefault(flavour, []).append(stream_id)
    return by_flavour


def id_order(stream_id: str) -> tuple[int, int]:
    """Return a sort key of stream ids: the order in which Redis assigned them."""
    milliseconds, _, sequence = stream_id.partition("-")
    return int(milliseconds), int(sequence or 0)


_LOCATION = re.compile(
    r"""(?P<scheme>rediss?)://(?:[^/?\#@]*@)?(?P<location>(?:[^/?\#@:\[\]]+|\[[0-9a-fA-F:]+\])?(?::\d+)?(?:/\d*)?)
    | (?P<unix>unix)://(?:[^/?\#@]*@)?(?P<path>/[^?\#@]*)""",
    re.VERBOSE,
)
_OPTIONS = re.compile(r"(?:\?[^#@]*)?")


def redact_url(url: str) -> str:
    """Return the URL without user, password and options, for display. Raise ValueError for a bad URL, with a
    message that does not contain the URL.

    Stricter than a URL parser: text that may belong to a password is never read as a host or a port.
    """
    scheme = url.partition("://")[0]
    if "cluster" in scheme:
        raise ValueError("a Redis cluster is not supported. Pass a single Redis (redis://HOST:PORT).")
    if scheme not in ("redis", "rediss", "unix"):
        raise ValueError("the Redis URL must begin with redis://, rediss:// or unix://")
    found = _LOCATION.match(url)
    if found is None or _OPTIONS.fullmatch(url, found.end()) is None:
        raise ValueError(MALFORMED)
    return f"{found['scheme'] or found['unix']}://{found['location'] or found['path'] or 'localhost'}"


MALFORMED = (
    "the Redis URL is malformed. Write redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] or unix://[[USER]:PASSWORD@]"
    "/PATH, and percent-encode special characters in the password"
)


def connect(url: str) -> Redis:
    """Return a client that never retries a command by itself. Raise ValueError for a bad URL."""
    redact_url(url)
    try:
        return Redis.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,  # `with_timeout` does it: redis-py's wait_for can swallow a cancellation
            socket_connect_timeout=ANSWER_TIMEOUT_S,
        )
    except (ValueError, TypeError):
        raise ValueError(MALFORMED) from None  # the parser's own message may quote the URL


async def with_timeout(command: Awaitable[T]) -> T:
    """Await one command. Raise TimeoutError (one of `REDIS_ERRORS`) if Redis does not answer in time."""
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        return await command


class RedisConnection:
    """The client of one Redis and its health.

    Args:
        on_wait: called after each failed attempt of `open` with the seconds waited and the reason.
        note: receives a line when Redis is unreachable for longer than `NOTE_S`, and when it answers again.

    era: the number of failures; Redis may have been replaced since the last. closing: ends the tasks even if
    redis-py swallows a cancellation. clock: `loop.time()`; time in which no task tries, because the process
    is stopped or its loop is blocked, does not count as downtime.

    Invariant: `down_since` is None iff the last command of every task was answered. A server that answers
    reads and refuses writes is therefore down.
    """

    def __init__(
        self,
        url: str,
        on_wait: Callable[[float, str], None] = lambda waited_s, reason: None,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._on_wait = on_wait
        self._note = note
        self._is_noted = False
        self.redis = connect(url)
        self.redacted_url = redact_url(url)
        self.era = 0
        self.reconnects = 0
        self.closing = False
        self.clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
        self._failing: dict[str, float] = {}
        self._tried_at = 0.0
        self.reason = "no attempt has ended yet"
        """The error of the last failed command."""

    @property
    def down_since(self) -> float | None:
        """The `loop.time()` of the first failure after which its task had no success, or None."""
        return min(self._failing.values(), default=None)

    def down_s(self, since: float = -math.inf) -> float:
        """Return the seconds that Redis has been down, counted from `since`."""
        if self.down_since is None:
            return 0.0
        return max(0.0, min(self.clock(), self._tried_at + LONGEST_STEP_S) - max(since, self.down_since))

    def up(self, task: str) -> None:
        if not self._failing:
            return
        self._exclude_pause()
        if self._failing.pop(task, None) is not None and not self._failing:
            self.reconnects += 1
            if self._is_noted:
                self._is_noted = False
                self._note(f"Redis at {self.redacted_url} answers again")

    def failed(self, task: str, error: BaseException) -> None:
        self.era += 1
        self.reason = f"{type(error).__name__}: {error}"
        self._exclude_pause()
        self._failing.setdefault(task, self._tried_at)
        if task != "open" and not self._is_noted and self.down_s() >= NOTE_S:
            self._is_noted = True
            self._note(f"Redis at {self.redacted_url} is unreachable: {self.reason}")

    def _exclude_pause(self) -> None:
        now = self.clock()
        paused_s = max(0.0, now - self._tried_at - LONGEST_STEP_S)
        for task in self._failing:
            self._failing[task] += paused_s
        self._tried_at = now

    def error(self, waited_s: float) -> SandboxError:
        return SandboxError(
            f"Redis at {self.redacted_url} has not served this node for {waited_s:.1f} s ({self.reason})",
            kind="fabric",
            retryable=True,
        )

    async def open(self, patience_s: float) -> None:
        """Wait for Redis. Raise SandboxError of kind `fabric`: immediately if Redis refuses the connection or
        is too old, after `patience_s` if it does not answer."""
        delays = backoff()
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            try:
                info = await with_timeout(self.redis.info("server"))
                numbers = re.findall(r"\d+", str(info.get("redis_version", "7.0")))
                version = tuple(map(int, numbers[:2]))
            except REDIS_ERRORS as error:
                if isinstance(error, REFUSALS) or isinstance(error.__cause__, REFUSALS):
                    raise SandboxError(
                        f"Redis at {self.redacted_url} refuses this node: {error}", kind="fabric", retryable=False
                    ) from None
                self.failed("open", error)
                if (waited_s := loop.time() - started_at) >= patience_s:
                    raise self.error(waited_s) from None
                self._on_wait(waited_s, self.reason)
                await asyncio.sleep(next(delays))
            else:
                break
        self.up("open")
        if version < OLDEST:
            number = ".".join(map(str, version))
            message = f"Redis at {self.redacted_url} is version {number}; 7.0 or newer is needed"
            raise SandboxError(message, kind="fabric", retryable=False)

    async def forever(self, step: Callable[[], Awaitable[None]], on_failure: Callable[[], None]) -> None:
        """Repeat `step` for one task; wait between attempts while Redis returns errors."""
        name = getattr(step, "__name__", repr(step))
        while not self.closing:
            await self.patiently(name, step, on_failure)

    async def patiently(self, name: str, step: Callable[[], Awaitable[T]], on_failure: Callable[[], None]) -> T:
        """Repeat `step` until Redis executes it, and return its result."""
        delays = backoff()
        try:
            while not self.closing:
                try:
                    done = await step()
                except REDIS_ERRORS as error:
                    self.failed(name, error)
                    on_failure()
                    await asyncio.sleep(next(delays))
                else:
                    self.up(name)
                    return done
            raise asyncio.CancelledError  # again: redis-py may have swallowed the first
        finally:
            self._failing.pop(name, None)  # also after a cancellation

    async def close(self) -> None:
        await self.redis.aclose()


def backoff() -> Iterator[float]:
    """Yield the delays between attempts of one task: doubled up to 0.5 s, with jitter."""
    delay_s = FIRST_DELAY_S
    while True:
        yield delay_s * random.uniform(0.5, 1.0)
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)
