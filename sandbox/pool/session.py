"""The open sessions of a pool.

caller -> LiveSession (one cell at a time) -> OpenSessions -> Calls -> supervisor -> the session's process
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.call_output import CallOutput
from rocstar.sandbox.pool.calls import Call, Calls, Line
from rocstar.sandbox.pool.fifo_lock import FifoLock
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, OnOutput, SandboxError, SessionLost

BRANCH_S = 30.0
"""The time limit of a branch."""

_WHY = {
    "died": "its last cell exited, crashed or was killed",
    "evicted": "it was the least recently used when memory was needed",
    "expired": "it was idle for longer than its lease",
    "supervisor_died": "the sandbox supervisor died",
    "closed": "it was closed",
}


@dataclass(eq=False)
class LiveSession:
    """See types.Session. The cells of one session run one after the other; sessions run concurrently."""

    owner: "OpenSessions"
    number: int
    limits: Limits
    lane: int
    weight: int
    lost: str | None = None
    ending: str = ""
    _turn: FifoLock = field(default_factory=FifoLock)

    @property
    def id(self) -> str:
        return str(self.number)

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
        cell = ExecRequest(
            code=code,
            limits=self.limits if wall_s is None else replace(self.limits, wall_s=wall_s),
            files=files or {},
            fetch=fetch if isinstance(fetch, str) else tuple(fetch),
            displays=displays,
        )
        follows = on_output is not None
        call = Call(
            lambda call_id: wire.encode_cell(call_id, self.number, cell, follows=follows),
            cell.limits.wall_s,
            restartable=False,
            lane=self.lane,
            weight=self.weight,
            output=CallOutput(on_output),
        )
        result: ExecResult = await self._in_turn(call, deadline)
        return result

    async def branch(self) -> "LiveSession":
        call = Call(
            lambda call_id: [wire.encode_ids(wire.BRANCH, call_id, self.number)],
            BRANCH_S,
            restartable=False,
            opens=self.limits,
            lane=self.lane,
            weight=self.weight,
        )
        branch: LiveSession = await self._in_turn(call, None)
        return branch

    async def _in_turn(self, call: Call, deadline: float | None) -> Any:
        """Run a call after the session's earlier ones and return its outcome. The next call may start when
        the supervisor has answered, for which a cancelled caller does not wait."""
        try:
            await self._turn.take(deadline)
        except TimeoutError:
            message = "the deadline passed before the session was free"
            raise SandboxError(message, kind="deadline", retryable=True) from None
        calls = self.owner.calls
        try:
            if self.lost is not None:
                raise self._loss(self.lost)
            return await calls.perform(call, deadline)
        except SessionLost:
            raise
        except SandboxError as error:
            if self.lost is not None and error.kind in ("cancelled", "session_lost"):
                raise self._loss(self.lost) from None
            if error.kind == "session_lost":
                raise SessionLost(str(error), reason="unknown") from None
            raise
        finally:
            calls.when_answered(call, self._turn.give)

    async def close(self) -> None:
        self.owner.close(self)

    def _loss(self, reason: str) -> SessionLost:
        why = self.ending or _WHY.get(reason, reason)
        return SessionLost(f"session {self.id} is gone: {why}", reason=reason, ending=self.ending)


@dataclass(eq=False)
class OpenSessions:
    """The live sessions of a pool. evictions: the number of those that were evicted or whose lease expired.

    Invariant: a session that is not in here has a `lost` reason."""

    calls: Calls
    line: Line
    evictions: int = 0
    _living: dict[int, LiveSession] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._living)

    def close(self, session: LiveSession) -> None:
        """Close a session, also one whose caller was cancelled while it opened."""
        if self._living.pop(session.number, None) is not None:
            session.lost = "closed"
            self.line.write(wire.encode_ids(wire.CLOSE, session.number))

    def opened(self, number: int, limits: Limits, lane: int, weight: int) -> LiveSession:
        self._living[number] = session = LiveSession(self, number, limits, lane, weight)
        return session

    def gone(self, number: int, reason: str, ending: str) -> None:
        """Record that the supervisor reported the end of a session."""
        self.evictions += reason in ("evicted", "expired")
        if session := self._living.pop(number, None):
            session.lost, session.ending = reason, ending

    def lose_all(self, reason: str) -> None:
        for session in self._living.values():
            session.lost = reason
        self._living.clear()
