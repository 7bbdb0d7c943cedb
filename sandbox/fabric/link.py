"""One Redis as both sides see it: where it is, its key names, and whether it answers.

A `Link` is shared by all tasks of one client or worker. Each of them reports success and failure; the link
says since when Redis has been silent, so that waiting ends in an error that names the reason.
"""

import asyncio
import math
import os
import random
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rocstar.sandbox.types import SandboxError

T = TypeVar("T")

PREFIX = "rocstar:fabric:2"
"""Ends in the version of what is written below it."""

ANSWER_TIMEOUT_S = 5.0
"""No command of ours blocks longer than `BLOCK_MS`; a server that is silent this long does not answer."""

BLOCK_MS = 1_000

FIRST_DELAY_S, LONGEST_DELAY_S = 0.05, 0.5

LONGEST_STEP_S = BLOCK_MS / 1000 + ANSWER_TIMEOUT_S + LONGEST_DELAY_S
"""A task of a link that waits for Redis says more often than this how it went."""

NOTE_S = 0.2
"""A failure that is over sooner is a connection that was closed, say."""

REDIS_ERRORS = (exceptions.RedisError, OSError)
"""What a server that is away, starting, full or misconfigured gives; each is waited out, then reported."""

REFUSALS = (exceptions.AuthenticationError, exceptions.NoPermissionError)

OLDEST = (7, 0)
"""From this version on, claiming an entry that was deleted frees it instead of returning it."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key of the fabric. `calls`: a stream per flavour. `reply`: a stream per client. `client`: a
    client's lease. `done`: ids of an unfinished entry's answered calls. `pieces`: a hash per long message.
    `workers`: sorted by lease end."""

    prefix: str

    def calls(self, flavour: str) -> str:
        return f"{self.prefix}:calls:{flavour}"

    def reply(self, client: str) -> str:
        return f"{self.prefix}:reply:{client}"

    def client(self, client: str) -> str:
        return f"{self.prefix}:client:{client}"

    def done(self, ref: str) -> str:
        return f"{self.prefix}:done:{ref}"

    def pieces(self, name: str) -> str:
        return f"{self.prefix}:pieces:{name}"

    @property
    def workers(self) -> str:
        return f"{self.prefix}:workers"


def unique_name() -> str:
    """The id of a client or a worker; never used again."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"


def make_ref(flavour: str, stream_id: str) -> str:
    return f"{flavour}/{stream_id}"


def split_refs(refs: Iterable[str]) -> dict[str, list[str]]:
    """Stream ids per flavour."""
    by_flavour: dict[str, list[str]] = {}
    for ref in refs:
        flavour, _, stream_id = ref.rpartition("/")
        by_flavour.setdefault(flavour, []).append(stream_id)
    return by_flavour


def id_order(stream_id: str) -> tuple[int, int]:
    """Stream ids in the order in which Redis gave them out."""
    milliseconds, _, sequence = stream_id.partition("-")
    return int(milliseconds), int(sequence or 0)


_PLACE = re.compile(
    r"""(?P<scheme>rediss?)://(?:[^/?\#@]*@)?(?P<place>(?:[^/?\#@:\[\]]+|\[[0-9a-fA-F:]+\])?(?::\d+)?(?:/\d*)?)
    | (?P<unix>unix)://(?:[^/?\#@]*@)?(?P<path>/[^?\#@]*)""",
    re.VERBOSE,
)
_OPTIONS = re.compile(r"(?:\?[^#@]*)?")


def shown(url: str) -> str:
    """The URL without user, password and options: what may be shown. Raises ValueError for a bad URL, without
    the URL. Stricter than a parser: what could be part of a password is never taken for a host or a port."""
    scheme = url.partition("://")[0]
    if "cluster" in scheme:
        raise ValueError("a Redis cluster is not supported; give a single Redis (redis://HOST:PORT)")
    if scheme not in ("redis", "rediss", "unix"):
        raise ValueError("the Redis URL must begin with redis://, rediss:// or unix://")
    found = _PLACE.match(url)
    if found is None or _OPTIONS.fullmatch(url, found.end()) is None:
        raise ValueError(MALFORMED)
    return f"{found['scheme'] or found['unix']}://{found['place'] or found['path'] or 'localhost'}"


MALFORMED = (
    "the Redis URL is malformed; write redis://[[USER]:PASSWORD@]HOST[:PORT][/DB] or unix://[[USER]:PASSWORD@]"
    "/PATH, and percent-encode special characters in the password"
)


def connect(url: str) -> Redis:
    """A client whose commands are never repeated behind our back. Raises ValueError for a bad URL."""
    shown(url)
    try:
        return Redis.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,  # `limited` does it: redis-py's wait_for can swallow a cancellation
            socket_connect_timeout=ANSWER_TIMEOUT_S,
        )
    except (ValueError, TypeError):
        raise ValueError(MALFORMED) from None  # the parser's own message may quote the URL


async def limited(command: Awaitable[T]) -> T:
    """One command, ended by TimeoutError (which is among `REDIS_ERRORS`) when Redis stays silent."""
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        return await command


class Link:
    """Invariant: `down_since` is None iff the last command of every task was answered. A server that answers
    reads and refuses writes is thereby down. `era` counts failures: Redis may have been replaced since.
    `on_wait` is told after each failure of `open` how long it has waited, and why; `note` gets a line when
    Redis is away for longer than `NOTE_S`, and one when it is back.
    `closing` ends the tasks even if a cancellation gets lost on the way through redis-py.
    `clock`: `loop.time()`. What passes of it while nobody tries, for this process is stopped or its loop is
    held, is no time in which Redis is down."""

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
        self.shown = shown(url)
        self.era = 0
        self.reconnects = 0
        self.closing = False
        self.clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
        self._failing: dict[str, float] = {}
        self._tried_at = 0.0
        self.reason = "no attempt has ended yet"
        """Why the last command that failed did."""

    @property
    def down_since(self) -> float | None:
        """`loop.time()` of the first failure that no success of the same task followed."""
        return min(self._failing.values(), default=None)

    def down_s(self, since: float = -math.inf) -> float:
        """For how long Redis has been down, of the time from `since` on."""
        if self.down_since is None:
            return 0.0
        return max(0.0, min(self.clock(), self._tried_at + LONGEST_STEP_S) - max(since, self.down_since))

    def up(self, task: str) -> None:
        if not self._failing:
            return
        self._forget_standstill()
        if self._failing.pop(task, None) is not None and not self._failing:
            self.reconnects += 1
            if self._is_noted:
                self._is_noted = False
                self._note(f"Redis at {self.shown} answers again")

    def failed(self, task: str, error: BaseException) -> None:
        self.era += 1
        self.reason = f"{type(error).__name__}: {error}"
        self._forget_standstill()
        self._failing.setdefault(task, self._tried_at)
        if task != "open" and not self._is_noted and self.down_s() >= NOTE_S:
            self._is_noted = True
            self._note(f"Redis at {self.shown} is away: {self.reason}")

    def _forget_standstill(self) -> None:
        now = self.clock()
        stood_s = max(0.0, now - self._tried_at - LONGEST_STEP_S)
        for task in self._failing:
            self._failing[task] += stood_s
        self._tried_at = now

    def error(self, waited_s: float) -> SandboxError:
        return SandboxError(
            f"Redis at {self.shown} has not served this node for {waited_s:.1f} s ({self.reason})",
            kind="fabric",
            retryable=True,
        )

    async def open(self, patience_s: float) -> None:
        """Waits for Redis. Raises SandboxError of kind `fabric`: at once when Redis refuses us or is too old,
        after `patience_s` when it does not answer."""
        backoff = Backoff()
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            try:
                version = await self._version()
            except REDIS_ERRORS as error:
                if isinstance(error, REFUSALS) or isinstance(error.__cause__, REFUSALS):
                    raise SandboxError(
                        f"Redis at {self.shown} refuses this node: {error}", kind="fabric", retryable=False
                    ) from None
                self.failed("open", error)
                if (waited_s := loop.time() - started_at) >= patience_s:
                    raise self.error(waited_s) from None
                self._on_wait(waited_s, self.reason)
                await backoff.wait()
            else:
                break
        self.up("open")
        if version < OLDEST:
            raise SandboxError(
                f"Redis at {self.shown} is version {'.'.join(map(str, version))}; 7.0 or newer is needed",
                kind="fabric",
                retryable=False,
            )

    async def forever(self, step: Callable[[], Awaitable[None]], on_failure: Callable[[], None]) -> None:
        """Repeats `step` for one task; waits between attempts while Redis gives errors."""
        name = getattr(step, "__name__", repr(step))
        backoff = Backoff()
        while not self.closing:
            try:
                await step()
            except REDIS_ERRORS as error:
                self.failed(name, error)
                on_failure()
                await backoff.wait()
            else:
                self.up(name)
                backoff.reset()

    async def patiently(
        self, name: str, step: Callable[[], Awaitable[T]], on_failure: Callable[[], None]
    ) -> T:
        """What `step` gives once Redis does it."""
        backoff = Backoff()
        try:
            while True:
                try:
                    done = await step()
                except REDIS_ERRORS as error:
                    self.failed(name, error)
                    on_failure()
                    await backoff.wait()
                else:
                    self.up(name)
                    return done
        finally:
            self._failing.pop(name, None)  # it was cancelled: nobody waits any more

    async def _version(self) -> tuple[int, ...]:
        info = await limited(self.redis.info("server"))
        return tuple(int(part) for part in re.findall(r"\d+", str(info.get("redis_version", "7.0")))[:2])

    async def close(self) -> None:
        await self.redis.aclose()


class Backoff:
    """Delays of one task between its attempts: doubled up to half a second, with jitter, reset by success."""

    def __init__(self) -> None:
        self._delay_s = FIRST_DELAY_S

    def reset(self) -> None:
        self._delay_s = FIRST_DELAY_S

    async def wait(self) -> None:
        delay_s = self._delay_s * random.uniform(0.5, 1.0)
        self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)
        await asyncio.sleep(delay_s)
