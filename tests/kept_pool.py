"""Sandbox pools for runs of `rocstar` in a test process; a pool reuses the supervisor of an earlier pool.

    run ──> KeptPool ──> supervisor, zygotes        run ──> KeptPool ──> the same, if its options are equal
               └── idle at its end: kept ───────────────────────┘

Starting a verifier takes 1.4 s of CPU, more than half of a small run. Only the processes are kept: each pool
has its own calls, places and protocol state. Runs in child processes and the tests of the sandbox use plain
pools.
"""

import asyncio
import atexit
import contextlib
import socket
import subprocess
from collections.abc import Iterator
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.pool.process import SupervisorOptions
from rocstar.train.serving import agent

MOST_KEPT = 2


class Kept(NamedTuple):
    """An idle supervisor: its options, process, socket, and the facts of its hello message."""

    options: SupervisorOptions
    process: subprocess.Popen[bytes]
    socket: socket.socket
    facts: dict[str, Any]

    def end(self) -> None:
        self.socket.close()
        self.process.wait()


class KeptPool(SandboxPool):
    """A pool whose supervisor may come from an earlier pool.

    A supervisor is kept only if it lives, has no calls and no sessions, and was never restarted.
    """

    kept: ClassVar[list[Kept]] = []

    async def __aenter__(self) -> Self:
        found = next((one for one in self.kept if one.options == self._restarter.options), None)
        if found is None:
            return await super().__aenter__()
        self.kept.remove(found)
        self._restarter._listener = self._calls
        supervisor = self._restarter._supervisor = self._restarter._new(self._restarter.options)
        supervisor._process, supervisor._socket, supervisor.facts = found.process, found.socket, found.facts
        await asyncio.get_running_loop().create_unix_connection(lambda: supervisor, sock=found.socket)
        supervisor._hello.set_result(None)
        self._started = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        supervisor = self._restarter._living
        if supervisor is None or self.in_flight or self._restarter.options.max_sessions or self.restarts:
            return await super().__aexit__(kind, error, trace)
        duplicate, facts = supervisor._socket.dup(), supervisor.facts
        supervisor.facts = {}  # else it removes the folders, as for a supervisor that died
        self._restarter._closed = True
        supervisor._stop_watching()
        assert supervisor._transport is not None
        supervisor._transport.abort()
        await supervisor._lost
        self._restarter._supervisor = None
        self.kept.append(Kept(self._restarter.options, supervisor._process, duplicate, facts))
        while len(self.kept) > MOST_KEPT:
            self.kept.pop(0).end()
        await super().__aexit__(kind, error, trace)


@contextlib.contextmanager
def kept_pools() -> Iterator[None]:
    """Let runs in the block keep their supervisor, unless a test replaces the pool."""
    real = agent.SandboxPool
    if real is SandboxPool:
        agent.SandboxPool = KeptPool  # type: ignore[misc]
    try:
        yield
    finally:
        agent.SandboxPool = real  # type: ignore[misc]


@atexit.register
def _end() -> None:
    while KeptPool.kept:
        KeptPool.kept.pop().end()
