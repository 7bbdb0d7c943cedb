"""Pools for runs of `rocstar` in a test process: each takes over the supervisor that the one before has left.

    run ──> KeptPool ──> supervisor, zygotes        run ──> KeptPool ──> the same, if it wants one alike
               └── at its end, idle: kept ──────────────────────┘

Importing and warming up what a verifier needs takes 1.4 s of CPU, more than half of a small run. What is left
of a pool is its processes alone: calls, places and the protocol's state are each pool's own. Runs in
processes of their own, and the tests of the sandbox, start pools as everybody does.
"""

from __future__ import annotations

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
    """A supervisor that no pool has: its process, the way to it and what it said of itself."""

    options: SupervisorOptions
    process: subprocess.Popen[bytes]
    way: socket.socket
    facts: dict[str, Any]

    def end(self) -> None:
        self.way.close()
        self.process.wait()


class KeptPool(SandboxPool):
    """A pool whose supervisor may have been another's, and may become another's.

    Invariant: a supervisor is kept that lives, has no call, holds no sessions and is the pool's first.
    """

    kept: ClassVar[list[Kept]] = []

    async def __aenter__(self) -> Self:
        found = next((one for one in self.kept if one.options == self._restarter.options), None)
        if found is None:
            return await super().__aenter__()
        self.kept.remove(found)
        self._restarter._listener = self._calls
        supervisor = self._restarter._supervisor = self._restarter._new(self._restarter.options)
        supervisor._process, supervisor._socket, supervisor.facts = found.process, found.way, found.facts
        await asyncio.get_running_loop().create_unix_connection(lambda: supervisor, sock=found.way)
        supervisor._hello.set_result(None)
        self._started = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        supervisor = self._restarter._living
        if supervisor is None or self.in_flight or self._restarter.options.max_sessions or self.restarts:
            return await super().__aexit__(kind, error, trace)
        way, facts = supervisor._socket.dup(), supervisor.facts
        supervisor.facts = {}  # or it would remove the folders of a supervisor that it takes for dead
        self._restarter._closed = True
        supervisor._stop_watching()
        assert supervisor._transport is not None
        supervisor._transport.abort()
        await supervisor._lost
        self._restarter._supervisor = None
        self.kept.append(Kept(self._restarter.options, supervisor._process, way, facts))
        while len(self.kept) > MOST_KEPT:
            self.kept.pop(0).end()
        await super().__aexit__(kind, error, trace)


@contextlib.contextmanager
def kept_pools() -> Iterator[None]:
    """A run in here keeps its supervisor, unless a test has put something in the pool's place."""
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
