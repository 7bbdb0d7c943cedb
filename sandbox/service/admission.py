"""Admission of calls to the sandbox, and the readiness probe.

    handler --> Admission.run / Admission.run_batch --> sandbox (queues what cannot run yet)
                  ^ RequestError if the owner's budget of calls would be exceeded

A handler that is cancelled because its client disconnected closes the sandbox's iterator, which kills its
programs.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NoReturn, cast

from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.service.metrics import ServiceMetrics
from rocstar.sandbox.types import BatchSandbox, ExecRequest, ExecResult, SandboxError, Status

Outcome = ExecResult | SandboxError
Outcomes = AsyncGenerator[tuple[int, Outcome], None]
MAX_CALL_S = 7200.0
"""Deadline of a call whose caller gave none: no call outlives its client's patience for ever."""


@dataclass(eq=False)
class Admission:
    """calls: the budget of calls in the sandbox. held: the budget of outputs that wait for the rest of their
    responses.

    Invariant: `metrics.in_flight` is the number of calls in the sandbox. The calls of a batch have one owner.
    """

    sandbox: BatchSandbox
    metrics: ServiceMetrics
    calls: OwnerBudget
    held: OwnerBudget
    _idle: asyncio.Event | None = None  # set while `drained` waits

    async def run(self, request: ExecRequest, deadline_s: float | None = None) -> ExecResult:
        """Run one call. Raises RequestError, or the SandboxError of a call without a result."""
        with self.admitted(request.owner):
            result = await self.sandbox.run(request, deadline=self.deadline(deadline_s))
        self.metrics.saw_result(request.flavour, result)
        return result

    async def run_batch(
        self, requests: Sequence[ExecRequest], deadline_s: float | None = None, *, entered: bool = False
    ) -> Outcomes:
        """Yield (index, outcome) as calls end, each index exactly once; a call without an outcome of the
        sandbox yields a SandboxError. Raises RequestError before anything runs, unless the caller has called
        `enter`."""
        owner = requests[0].owner if requests else ""
        if not entered:
            self.enter(len(requests), owner)
        waits = bytearray(b"\1" * len(requests))  # by index, 1 while the outcome is pending
        failure = SandboxError("the sandbox gave this call no outcome", kind="lost", retryable=True)
        try:
            given = cast(Outcomes, self.sandbox.run_batch(requests, deadline=self.deadline(deadline_s)))
            try:
                async with aclosing(given) as outcomes:
                    async for index, outcome in outcomes:
                        if waits[index]:
                            waits[index] = 0
                            if isinstance(outcome, ExecResult):
                                self.metrics.saw_result(requests[index].flavour, outcome)
                            else:
                                self.metrics.failures[(outcome.kind,)] += 1
                            self.leave(1, owner)
                            yield index, outcome
            except SandboxError as error:
                failure = error
            for index, waiting in enumerate(waits):
                if waiting:
                    waits[index] = 0
                    self.metrics.failures[(failure.kind,)] += 1
                    self.leave(1, owner)
                    yield index, failure
        finally:
            self.leave(waits.count(1), owner)

    def admitted(self, owner: str) -> "AdmittedCall":
        """Counts one call that runs inside, a session's cell say. Entering it may raise RequestError."""
        return AdmittedCall(self, owner)

    def admit(self, num_calls: int, owner: str) -> None:
        """Raise RequestError if the calls of `owner` could not start now."""
        if not self.calls.fits(owner, num_calls):
            self._refuse(num_calls, owner)

    def _refuse(self, num_calls: int, owner: str) -> NoReturn:
        in_flight, most = self.calls.taken, self.calls.limit_of(owner)
        if num_calls > most:
            message = f"{num_calls} calls never fit: this service holds at most {most} of yours"
            raise RequestError(message, kind="too_large")
        own = self.calls.used_by(owner)
        raise RequestError(f"{in_flight} calls are in flight, {own} of them yours; ask again later", kind="full")

    async def drained(self) -> None:
        """Returns once no call is in flight."""
        if self.metrics.in_flight:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def enter(self, num_calls: int, owner: str) -> None:
        """Count calls that start. Raises RequestError."""
        if not self.calls.try_take(owner, num_calls):
            self._refuse(num_calls, owner)
        self.metrics.in_flight += num_calls

    def leave(self, num_calls: int, owner: str) -> None:
        """Count calls that have ended."""
        self.calls.give(owner, num_calls)
        self.metrics.in_flight -= num_calls
        if self._idle is not None and self.metrics.in_flight == 0:
            self._idle.set()
            self._idle = None

    @staticmethod
    def deadline(deadline_s: float | None) -> float:
        """Absolute `loop.time()`."""
        return asyncio.get_running_loop().time() + (MAX_CALL_S if deadline_s is None else deadline_s)


@dataclass(slots=True, eq=False)
class AdmittedCall:
    """Counts one call while it runs. A generator's context manager takes three times as long."""

    admission: Admission
    owner: str

    def __enter__(self) -> None:
        self.admission.enter(1, self.owner)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.admission.leave(1, self.owner)
        if isinstance(error, SandboxError):
            self.admission.metrics.failures[(error.kind,)] += 1


READY_S = 10.0
READY_KEPT_S = 1.0
READINESS = " readiness"
"""The owner of that program, under a name that no token can have: it waits for no owner's calls."""


@dataclass(eq=False)
class ReadinessProbe:
    """Invariant: at most one program a second is run, however many ask."""

    sandbox: BatchSandbox
    flavour: str
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _probed_s: float = float("-inf")
    _problem: str = ""

    async def problem(self) -> str:
        """Return why the sandbox cannot run a program, or ""."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() - self._probed_s > READY_KEPT_S:
                request = ExecRequest(code="print(1)", flavour=self.flavour, owner=READINESS)
                try:
                    result = await self.sandbox.run(request, deadline=loop.time() + READY_S)
                except SandboxError as error:
                    self._problem = f"{error.kind}: {error}"
                else:
                    is_right = result.status is Status.OK and result.stdout == "1\n"
                    self._problem = "" if is_right else f"print(1) gave {result.status}"
                self._probed_s = loop.time()
            return self._problem
