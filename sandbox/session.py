"""A live interpreter of the pool.

caller -> LiveSession (one cell at a time) -> SandboxPool -> supervisor -> the session's process
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from rocstar.sandbox.types import ExecResult, Limits, SandboxError, SessionLost

_WHY = {
    "died": "its last cell exited, crashed or was killed",
    "evicted": "it was the least recently used when room was needed",
    "expired": "it was idle for longer than its lease",
    "supervisor_died": "the sandbox supervisor died",
    "closed": "it was closed",
}


class _Pool(Protocol):
    async def run_cell(
        self, session: "LiveSession", code: str, wall_s: float, deadline: float | None
    ) -> ExecResult: ...

    async def branch(self, session: "LiveSession") -> "LiveSession": ...

    async def close_session(self, session: "LiveSession") -> None: ...

    def when_answered(self, session: "LiveSession", then: Callable[[], None]) -> None: ...


class LiveSession:
    """See types.Session. Cells of one session wait for each other; those of different sessions do not."""

    def __init__(self, pool: _Pool, number: int, limits: Limits) -> None:
        self.number = number
        self.limits = limits
        self._pool = pool
        self._turn = asyncio.Lock()
        self._lost: str | None = None

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def lost(self) -> str | None:
        """Why it is gone, while it lives None."""
        return self._lost

    async def run(
        self, code: str, *, wall_s: float | None = None, deadline: float | None = None
    ) -> ExecResult:
        limits = self.limits if wall_s is None else dataclasses.replace(self.limits, wall_s=wall_s)
        async with self._own_turn(deadline):
            return await self._pool.run_cell(self, code, limits.wall_s, deadline)

    async def branch(self) -> "LiveSession":
        async with self._own_turn(None):
            return await self._pool.branch(self)

    @asynccontextmanager
    async def _own_turn(self, deadline: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            message = "the deadline passed before the session was free"
            raise SandboxError(message, kind="deadline", retryable=True) from None
        try:
            self._check()
            yield
        except SandboxError as error:
            raise self._told(error) from None
        finally:
            self._pool.when_answered(self, self._turn.release)

    async def close(self) -> None:
        await self._pool.close_session(self)

    def lose(self, reason: str) -> None:
        """For the pool, when the process is gone."""
        if self._lost is None:
            self._lost = reason

    def _told(self, error: SandboxError) -> SandboxError:
        if isinstance(error, SessionLost):
            return error
        ended = error.kind == "cancelled" and self._lost is not None
        if not ended and error.kind != "session_lost":
            return error
        return SessionLost(str(error), reason=self._lost or "unknown")

    def _check(self) -> None:
        if self._lost is not None:
            why = _WHY.get(self._lost, self._lost)
            raise SessionLost(f"session {self.id} is gone: {why}", reason=self._lost)
