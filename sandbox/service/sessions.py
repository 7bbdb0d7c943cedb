"""The sessions that clients hold by id: leased, bounded, used by one request at a time.

The sandbox bounds its interpreters and may evict one; a client learns it from the next call, as a SessionLost
with the reason. The table adds a lease of its own, so that an abandoned session ends.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from rocstar.sandbox.service.metrics import Metrics
from rocstar.sandbox.types import ExecResult, Limits, SandboxError, Session, SessionLost, SessionSandbox

MAX_REMEMBERED = 16_384
"""Ended sessions whose reason is remembered."""


class _Entry:
    __slots__ = ("flavour", "lock", "session", "used_s", "users")

    def __init__(self, session: Session, flavour: str, now_s: float) -> None:
        self.session = session
        self.flavour = flavour
        self.lock = asyncio.Lock()
        self.used_s = now_s
        self.users = 0


class SessionTable:
    """Invariant: an id is live, or lost for a reason that is remembered, or `unknown`; at most `max_sessions`
    are live, and one idle for `lease_s` ends as `expired`."""

    def __init__(
        self, sandbox: SessionSandbox, metrics: Metrics, *, lease_s: float = 1800.0, max_sessions: int = 4096
    ) -> None:
        self._sandbox = sandbox
        self._metrics = metrics
        self._lease_s = lease_s
        self._max_sessions = max_sessions
        self._live: OrderedDict[str, _Entry] = OrderedDict()
        self._lost: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    async def open(self, flavour: str, limits: Limits, seed: int | None) -> str:
        session = await self._sandbox.open_session(flavour=flavour, limits=limits, seed=seed)
        return await self._add(session, flavour)

    async def run(self, session_id: str, code: str, *, wall_s: float | None, deadline: float) -> ExecResult:
        """Runs one cell after those that wait. Raises SessionLost."""
        async with self._using(session_id, deadline) as entry:
            result = await entry.session.run(code, wall_s=wall_s, deadline=deadline)
            self._metrics.saw_result(entry.flavour, result)
            return result

    async def branch(self, session_id: str, *, deadline: float) -> str:
        async with self._using(session_id, deadline) as entry:
            session = await entry.session.branch()
        return await self._add(session, entry.flavour)

    async def close(self, session_id: str) -> None:
        """Ends a session. Raises SessionLost for one that is not there."""
        entry = self._live.get(session_id)
        if entry is None:
            raise self._loss(session_id)
        self._forget(session_id, "closed", count=False)
        await self._close(entry)

    async def sweep(self) -> None:
        """Ends the sessions whose lease is over. The table is in order of last use."""
        now_s = asyncio.get_running_loop().time()
        for session_id, entry in list(self._live.items()):
            if entry.used_s + self._lease_s > now_s:
                break
            if entry.users == 0:
                self._forget(session_id, "expired")
                await self._close(entry)

    async def sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(max(0.05, min(30.0, self._lease_s / 4)))
            await self.sweep()

    async def close_all(self) -> None:
        for session_id, entry in list(self._live.items()):
            self._forget(session_id, "closed", count=False)
            await self._close(entry)

    async def _add(self, session: Session, flavour: str) -> str:
        while len(self._live) >= self._max_sessions:
            idle = next((item for item in self._live.items() if item[1].users == 0), None)
            if idle is None:
                await session.close()
                raise SandboxError(
                    f"all {self._max_sessions} sessions are in use", kind="full", retryable=True
                )
            self._forget(idle[0], "evicted")
            await self._close(idle[1])
        session_id = secrets.token_hex(16)
        self._live[session_id] = _Entry(session, flavour, asyncio.get_running_loop().time())
        self._metrics.sessions_opened += 1
        return session_id

    @asynccontextmanager
    async def _using(self, session_id: str, deadline: float) -> AsyncIterator[_Entry]:
        entry = self._live.get(session_id)
        if entry is None:
            raise self._loss(session_id)
        entry.users += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await entry.lock.acquire()
            except TimeoutError:
                message = "the deadline passed before earlier cells of the session ended"
                raise SandboxError(message, kind="deadline", retryable=True) from None
            try:
                if self._live.get(session_id) is not entry:  # it ended while this call waited
                    raise self._loss(session_id)
                yield entry
            except SessionLost as loss:
                self._forget(session_id, loss.reason)
                raise
            finally:
                entry.lock.release()
        finally:
            entry.users -= 1
            if session_id in self._live:
                entry.used_s = asyncio.get_running_loop().time()
                self._live.move_to_end(session_id)

    def _forget(self, session_id: str, reason: str, *, count: bool = True) -> None:
        if self._live.pop(session_id, None) is None:
            return
        self._lost[session_id] = reason
        if len(self._lost) > MAX_REMEMBERED:
            self._lost.popitem(last=False)
        if count:
            self._metrics.sessions_lost[(reason,)] += 1

    def _loss(self, session_id: str) -> SessionLost:
        reason = self._lost.get(session_id, "unknown")
        return SessionLost(f"the session is gone: {reason}", reason=reason)

    async def _close(self, entry: _Entry) -> None:
        with suppress(SandboxError):  # it is gone already, which is what is wanted
            await entry.session.close()
