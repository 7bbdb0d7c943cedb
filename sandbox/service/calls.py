"""Calls on their way to the sandbox: admitted or refused at once, counted, never queued here.

    handler --> Admission.run / Admission.run_batch --> sandbox (holds what cannot run yet)
                  ^ Full when `max_in_flight` would be exceeded

A handler that is cancelled (its client went away) closes the sandbox's iterator, which kills its programs.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import NoReturn, cast

from rocstar.sandbox.loopback.shares import NO_WEIGHTS, Shares
from rocstar.sandbox.service.errors import Full, Refused
from rocstar.sandbox.service.metrics import Metrics
from rocstar.sandbox.types import BatchSandbox, ExecRequest, ExecResult, SandboxError

Outcome = ExecResult | SandboxError
_Outcomes = AsyncGenerator[tuple[int, Outcome], None]

MAX_CALL_S = 7200.0
"""Deadline of a call whose caller gave none: no call outlives its client's patience for ever."""


class Admission:
    """Invariant: at most `max_in_flight` calls are in the sandbox, of which each owner finds its share;
    `metrics.in_flight` is their number. The calls of a batch are one owner's."""

    def __init__(
        self,
        sandbox: BatchSandbox,
        metrics: Metrics,
        *,
        max_in_flight: int,
        max_held_chars: int = 1 << 30,
        weights: Mapping[str, int] = NO_WEIGHTS,
    ) -> None:
        """`max_held_chars`: of outputs that wait for the rest of their answers."""
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight is {max_in_flight}; at least 1 is needed")
        self._sandbox = sandbox
        self._metrics = metrics
        self._shares = Shares(max_in_flight, weights)
        self.held = Shares(max_held_chars, weights)
        self._idle: asyncio.Event | None = None  # while somebody waits for it

    async def run(self, request: ExecRequest, deadline_s: float | None = None) -> ExecResult:
        """Runs one call. Raises Full, or the SandboxError of a call that has no result."""
        with self.admitted(request.owner):
            result = await self._sandbox.run(request, deadline=self.deadline(deadline_s))
        self._metrics.saw_result(request.flavour, result)
        return result

    async def run_batch(
        self, requests: Sequence[ExecRequest], deadline_s: float | None = None, *, entered: bool = False
    ) -> AsyncIterator[tuple[int, Outcome]]:
        """Yields (index, outcome) as calls end, each index exactly once: what the sandbox leaves out has a
        failure. Raises Full before anything ran, unless the caller has let them `enter`."""
        owner = requests[0].owner if requests else ""
        if not entered:
            self.enter(len(requests), owner)
        waits = bytearray(b"\1" * len(requests))  # by index, whether its outcome is still to come
        failure = SandboxError("the sandbox gave this call no outcome", kind="lost", retryable=True)
        try:
            given = cast(_Outcomes, self._sandbox.run_batch(requests, deadline=self.deadline(deadline_s)))
            try:
                async with aclosing(given) as outcomes:
                    async for index, outcome in outcomes:
                        if waits[index]:
                            waits[index] = 0
                            if isinstance(outcome, ExecResult):
                                self._metrics.saw_result(requests[index].flavour, outcome)
                            else:
                                self.failed(outcome)
                            self.leave(1, owner)
                            yield index, outcome
            except SandboxError as error:
                failure = error
            for index, waiting in enumerate(waits):
                if waiting:
                    waits[index] = 0
                    self.failed(failure)
                    self.leave(1, owner)
                    yield index, failure
        finally:
            self.leave(waits.count(1), owner)

    def admitted(self, owner: str) -> "Admitted":
        """Counts one call that runs inside, a session's cell say. Entering it raises Full."""
        return Admitted(self, owner)

    def admit(self, num_calls: int, owner: str) -> None:
        """Raises Full if so many calls of `owner` could not enter now."""
        if not self._shares.fits(owner, num_calls):
            self._refuse(num_calls, owner)

    def _refuse(self, num_calls: int, owner: str) -> NoReturn:
        in_flight, most = self._shares.taken, self._shares.most(owner)
        if num_calls > most:
            raise Refused(
                f"{num_calls} calls never fit: this service holds at most {most} of yours",
                kind="too_large",
                status=413,
            )
        raise Full(
            f"{in_flight} calls are in flight, {self._shares.of(owner)} of them yours; ask again later"
        )

    async def drained(self) -> None:
        """Returns once no call is in flight."""
        if self._metrics.in_flight:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def enter(self, num_calls: int, owner: str) -> None:
        """So many calls begin. Raises Full."""
        if not self._shares.try_take(owner, num_calls):
            self._refuse(num_calls, owner)
        self._metrics.in_flight += num_calls

    def leave(self, num_calls: int, owner: str) -> None:
        """So many have ended."""
        self._shares.give(owner, num_calls)
        self._metrics.in_flight -= num_calls
        if self._idle is not None and self._metrics.in_flight == 0:
            self._idle.set()
            self._idle = None

    def failed(self, error: SandboxError) -> None:
        """A call has no result."""
        self._metrics.failures[(error.kind,)] += 1

    @staticmethod
    def deadline(deadline_s: float | None) -> float:
        """Absolute `loop.time()`."""
        return asyncio.get_running_loop().time() + (MAX_CALL_S if deadline_s is None else deadline_s)


class Admitted:
    """One call, from entering to leaving it. A generator's context manager takes three times as long."""

    __slots__ = ("_admission", "_owner")

    def __init__(self, admission: Admission, owner: str) -> None:
        self._admission = admission
        self._owner = owner

    def __enter__(self) -> None:
        self._admission.enter(1, self._owner)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._admission.leave(1, self._owner)
        if isinstance(error, SandboxError):
            self._admission.failed(error)
