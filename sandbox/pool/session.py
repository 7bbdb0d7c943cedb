"""The open sessions of a pool.

caller -> LiveSession (one cell at a time) -> OpenSessions -> Calls -> supervisor -> the session's process
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.call_output import CallOutput
from rocstar.sandbox.pool.calls import Call, Calls, Line
from rocstar.sandbox.pool.fifo_lock import FifoLock
from rocstar.sandbox.types import ExecResult, Limits, OnOutput, SandboxError, SessionLost

BRANCH_S = 30.0
"""The time limit of a branch."""

_WHY = {
    "died": "its last cell exited, crashed or was killed",
    "evicted": "it was the least recently used when memory was needed",
    "expired": "it was idle for longer than its lease",
    "supervisor_died": "the sandbox supervisor died",
    "closed": "it was closed",
}


class LiveSession:
    """See types.Session. The cells of one session run one after the other; sessions run concurrently."""

    def __init__(self, owner: "OpenSessions", number: int, limits: Limits, lane: int, weight: int) -> None:
        self.number = number
        self.limits = limits
        self.lane = lane
        self.weight = weight
        self._owner = owner
        self._turn = FifoLock()
        self._lost: str | None = None
        self._ending = ""

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def lost(self) -> str | None:
        """The reason for which the interpreter is gone, or None."""
        return self._lost

    @property
    def ending(self) -> str:
        """A description of how the process ended."""
        return self._ending

    async def run(
        self,
        code: str,
        *,
        wall_s: float | None = None,
        deadline: float | None = None,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        displays: bool = False,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        limits = self.limits if wall_s is None else dataclasses.replace(self.limits, wall_s=wall_s)
        cell = wire.CellOrder(
            code=code,
            wall_s=limits.wall_s,
            files=files or wire.NO_FILES,
            fetch=fetch if isinstance(fetch, str) else tuple(fetch),
            displays=displays,
        )
        result: ExecResult = await self._in_turn(self._owner.cell(self, cell, on_output), deadline)
        return result

    async def branch(self) -> "LiveSession":
        branch: LiveSession = await self._in_turn(self._owner.branch(self), None)
        return branch

    async def _in_turn(self, call: Call, deadline: float | None) -> Any:
        """Run a call after the session's earlier ones and return its outcome. The next call may start when
        the supervisor has answered, for which a cancelled caller does not wait."""
        try:
            await self._turn.take(deadline)
        except TimeoutError:
            message = "the deadline passed before the session was free"
            raise SandboxError(message, kind="deadline", retryable=True) from None
        calls = self._owner.calls
        try:
            if self._lost is not None:
                raise self._loss(self._lost)
            return await calls.perform(call, deadline)
        except SandboxError as error:
            raise self._to_session_error(error) from None
        finally:
            calls.when_answered(call, self._turn.give)

    async def close(self) -> None:
        self._owner.close(self)

    def lose(self, reason: str, ending: str = "") -> None:
        """Record that the process is gone. Called by the owner."""
        if self._lost is None:
            self._lost, self._ending = reason, ending

    def _to_session_error(self, error: SandboxError) -> SandboxError:
        if isinstance(error, SessionLost):
            return error
        if self._lost is not None and error.kind in ("cancelled", "session_lost"):
            return self._loss(self._lost)
        return SessionLost(str(error), reason="unknown") if error.kind == "session_lost" else error

    def _loss(self, reason: str) -> SessionLost:
        why = self._ending or _WHY.get(reason, reason)
        return SessionLost(f"session {self.id} is gone: {why}", reason=reason, ending=self._ending)


class OpenSessions:
    """The live sessions of a pool. Invariant: a session that is not in here has a `lost` reason."""

    def __init__(self, calls: Calls, line: Line) -> None:
        self.calls = calls
        self._line = line
        self._living: dict[int, LiveSession] = {}
        self.evictions = 0
        """The number of sessions that were evicted or whose lease expired."""

    def __len__(self) -> int:
        return len(self._living)

    # --- for LiveSession ---------------------------------------------------------------------------------

    def cell(self, session: LiveSession, cell: wire.CellOrder, on_output: OnOutput | None) -> Call:
        def encode(call_id: int) -> list[bytes]:
            return wire.encode_cell(call_id, session.number, cell, follows=on_output is not None)

        return Call(
            encode,
            cell.wall_s,
            restartable=False,
            lane=session.lane,
            weight=session.weight,
            output=CallOutput(on_output),
        )

    def branch(self, session: LiveSession) -> Call:
        def encode(call_id: int) -> list[bytes]:
            return [wire.encode_branch(call_id, session.number)]

        return Call(
            encode,
            BRANCH_S,
            restartable=False,
            opens=session.limits,
            lane=session.lane,
            weight=session.weight,
        )

    def close(self, session: LiveSession) -> None:
        """Close a session, also one whose caller was cancelled while it opened."""
        if self._living.pop(session.number, None) is not None:
            session.lose("closed")
            self._line.write(wire.encode_id(wire.CLOSE, session.number))

    # --- for the pool ------------------------------------------------------------------------------------

    def opened(self, number: int, limits: Limits, lane: int, weight: int) -> LiveSession:
        self._living[number] = session = LiveSession(self, number, limits, lane, weight)
        return session

    def gone(self, number: int, reason: str, ending: str) -> None:
        """Record that the supervisor reported the end of a session."""
        self.evictions += reason in ("evicted", "expired")
        if session := self._living.pop(number, None):
            session.lose(reason, ending)

    def lose_all(self, reason: str) -> None:
        for session in self._living.values():
            session.lose(reason)
        self._living.clear()
