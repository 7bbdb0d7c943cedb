"""Sessions that clients address by id: leased, bounded, and used by one request at a time.

The sandbox bounds its interpreters and may evict one; the next call of the client then raises SessionLost
with the reason. The table adds a lease, so that an abandoned session ends.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from msgspec import Struct

from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.pool.fifo_lock import FifoLock
from rocstar.sandbox.service.metrics import ServiceMetrics
from rocstar.sandbox.service.validation import AUTO
from rocstar.sandbox.types import ExecResult, Limits, OnOutput, SandboxError, Session, SessionLost, SessionSandbox


class OpenSession(Struct, forbid_unknown_fields=True):
    """`busy`: a request uses it now. `expires_s`: the seconds that are left of its lease."""

    id: str
    flavour: str
    busy: bool
    expires_s: float


MAX_REMEMBERED = 16_384
"""Ended sessions whose reason is remembered."""


@dataclass(slots=True, eq=False)
class _Entry:
    """reopen: reopens the session in another flavour; None from its first cell on."""

    session: Session
    flavour: str
    owner: str
    used_s: float
    reopen: Callable[[str], Awaitable[Session]] | None = None
    turn: FifoLock = field(default_factory=FifoLock)
    users: int = 0


@dataclass(eq=False)
class SessionTable:
    """The sessions of a server.

    Args:
        shares: the budget of live sessions.
        lease_s: the time that a session may be idle.
        select_flavour: returns the flavour of a program; None if the sandbox has no flavours.

    Invariant: an id is live, or lost for a reason that is remembered in `_lost` (with the description of its
    process's end), or `unknown`; a session idle for `lease_s` ends as `expired`; a session is `unknown` to
    all but its owner.
    """

    sandbox: SessionSandbox
    metrics: ServiceMetrics
    shares: OwnerBudget
    _: KW_ONLY
    lease_s: float = 1800.0
    select_flavour: Callable[[str], str] | None = None
    _live: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)
    _lost: OrderedDict[str, tuple[str, str]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._live

    async def open(self, flavour: str, limits: Limits, seed: int | None, owner: str = "") -> str:
        """Opens one in a flavour, or in `auto`, the one that suits its first cell."""
        reopen = None
        if flavour == AUTO and self.select_flavour is not None:
            flavour = self.select_flavour("")
            reopen = partial(self._open, limits, seed, owner)
        session = await self._open(limits, seed, owner, flavour)
        session_id = await self._add(session, flavour, owner)
        self._live[session_id].reopen = reopen
        return session_id

    async def _open(self, limits: Limits, seed: int | None, owner: str, flavour: str) -> Session:
        return await self.sandbox.open_session(flavour=flavour, limits=limits, seed=seed, owner=owner)

    async def run(
        self,
        session_id: str,
        code: str,
        *,
        wall_s: float | None = None,
        deadline: float,
        owner: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        displays: bool = False,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Runs one cell after those that wait; see Session.run. Raises SessionLost."""
        async with self._turn(session_id, owner, deadline) as entry:
            await self._select_session_flavour(entry, code)
            result = await entry.session.run(
                code,
                wall_s=wall_s,
                deadline=deadline,
                files=files,
                fetch=fetch,
                displays=displays,
                on_output=on_output,
            )
        self.metrics.saw_result(entry.flavour, result)
        if entry.session.lost is not None:  # the cell ended it
            self._forget(session_id, entry.session.lost, entry.session.ending)
        return result

    def list_owned(self, owner: str) -> list[OpenSession]:
        """The sessions of an owner, least recently used first."""
        now_s = asyncio.get_running_loop().time()
        return [
            OpenSession(
                id=session_id,
                flavour=entry.flavour,
                busy=entry.users > 0,
                expires_s=round(max(0.0, self.lease_s - (now_s - entry.used_s)), 3),
            )
            for session_id, entry in self._live.items()
            if entry.owner == owner and entry.session.lost is None
        ]

    def end_reason(self, session_id: str) -> str:
        """Return how a session ended, or "" if it has not."""
        reason, ending = self._lost.get(session_id, ("", ""))
        return ending or reason

    async def _select_session_flavour(self, entry: _Entry, code: str) -> None:
        """Select the flavour before the first cell, when a new interpreter loses no state. If none is free,
        the session continues in its current one, where imports take longer."""
        reopen, entry.reopen = entry.reopen, None
        if reopen is None or self.select_flavour is None:
            return
        if (flavour := self.select_flavour(code)) == entry.flavour:
            return
        with suppress(SandboxError):
            session = await reopen(flavour)
            before, entry.session, entry.flavour = entry.session, session, flavour
            with suppress(SandboxError):
                await before.close()

    async def branch(self, session_id: str, *, deadline: float, owner: str = "") -> str:
        async with self._turn(session_id, owner, deadline) as entry:
            entry.reopen = None
            session = await entry.session.branch()
        return await self._add(session, entry.flavour, owner)

    async def close(self, session_id: str, owner: str = "") -> None:
        """End a session. Raises SessionLost for an unknown one."""
        await self._end(session_id, self._find(session_id, owner), "closed", count=False)

    async def sweep(self) -> None:
        """End the sessions whose lease has expired. The table is in order of last use."""
        now_s = asyncio.get_running_loop().time()
        for session_id, entry in list(self._live.items()):
            if entry.used_s + self.lease_s > now_s:
                break
            if entry.users == 0:
                await self._end(session_id, entry, "expired")

    async def run_sweeper(self) -> None:
        while True:
            await asyncio.sleep(max(0.05, min(30.0, self.lease_s / 4)))
            await self.sweep()

    async def close_all(self) -> None:
        for session_id, entry in list(self._live.items()):
            await self._end(session_id, entry, "closed", count=False)

    async def _add(self, session: Session, flavour: str, owner: str) -> str:
        while not self.shares.fits(owner, 1):
            idle = self._idle_of(self.shares.largest_owner()) or self._idle_of(owner)
            if idle is None:
                await session.close()
                raise SandboxError(
                    f"all {self.shares.limit_of(owner)} sessions are in use", kind="full", retryable=True
                )
            await self._end(idle, self._live[idle], "evicted")
        session_id = secrets.token_hex(16)
        self._live[session_id] = _Entry(session, flavour, owner, asyncio.get_running_loop().time())
        self.shares.take(owner, 1)
        self.metrics.sessions_opened += 1
        return session_id

    def _idle_of(self, owner: str) -> str | None:
        """Return the least recently used session without a request, or None."""
        idle = (name for name, entry in self._live.items() if entry.owner == owner and entry.users == 0)
        return next(idle, None)

    def _find(self, session_id: str, owner: str) -> _Entry:
        entry = self._live.get(session_id)
        if entry is None or entry.owner != owner:
            raise self._loss(session_id)
        return entry

    @asynccontextmanager
    async def _turn(self, session_id: str, owner: str, deadline: float) -> AsyncIterator[_Entry]:
        """Wait for the earlier requests of the session, then run the block and renew the lease. Raises
        SessionLost, or a SandboxError at the deadline."""
        entry = self._find(session_id, owner)
        entry.users += 1
        try:
            try:
                await entry.turn.take(deadline)
            except TimeoutError:
                message = "the deadline passed before earlier cells of the session ended"
                raise SandboxError(message, kind="deadline", retryable=True) from None
            try:
                if self._live.get(session_id) is not entry:  # it ended while this call waited
                    raise self._loss(session_id)
                yield entry
            except SessionLost as loss:
                self._forget(session_id, loss.reason, loss.ending)
                raise self._loss(session_id) from None
            finally:
                entry.turn.give()
        finally:
            entry.users -= 1
            if session_id in self._live:
                entry.used_s = asyncio.get_running_loop().time()
                self._live.move_to_end(session_id)

    def _forget(self, session_id: str, reason: str, ending: str = "", *, count: bool = True) -> None:
        entry = self._live.pop(session_id, None)
        if entry is None:
            return
        self.shares.give(entry.owner, 1)
        self._lost[session_id] = reason, ending
        if len(self._lost) > MAX_REMEMBERED:
            self._lost.popitem(last=False)
        if count:
            self.metrics.sessions_lost[(reason,)] += 1

    def _loss(self, session_id: str) -> SessionLost:
        reason, ending = self._lost.get(session_id, ("unknown", ""))
        return SessionLost(f"the session is gone: {ending or reason}", reason=reason, ending=ending)

    async def _end(self, session_id: str, entry: _Entry, reason: str, *, count: bool = True) -> None:
        self._forget(session_id, reason, count=count)
        with suppress(SandboxError):  # it has ended already
            await entry.session.close()
