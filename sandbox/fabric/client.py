"""The fabric's client: a BatchSandbox whose programs run on any node that has a worker.

    run, run_batch -> OpenCalls -> Sender.write -- entries --> calls stream per flavour ==> workers
          ^             |  ^                                                               |
          |             |  +--- Receiver.audit: is every entry still there? lease, live workers
          +-- settle ---+------ Receiver.read <-- answers --- reply stream of this client <+

Callers wait only for their own futures. The tasks of a client wait for Redis, each for at most a socket
timeout, and never for each other; `_watch` fails the calls that wait too long.

Inside, delivery is at least once: an entry runs again if its worker dies (on another worker), if Redis lost
it (this client resends it) or if sending was interrupted (resent, perhaps twice). Outside, each call has
exactly one outcome: `OpenCalls` settles a call once and ignores later answers.
"""

import asyncio
import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Self

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.child.import_scan import select_flavour
from rocstar.sandbox.extras import shell_command
from rocstar.sandbox.fabric.batch_prefetch import AHEAD_CALLS, OPENED_AT_ONCE, PrefetchedBatch
from rocstar.sandbox.fabric.open_calls import NO_BATCH, OpenCall, OpenCalls
from rocstar.sandbox.fabric.receiver import UNSERVED, Receiver
from rocstar.sandbox.fabric.redis_commands import ClientCommands
from rocstar.sandbox.fabric.redis_connection import PREFIX, REDIS_ERRORS, RedisConnection, unique_name
from rocstar.sandbox.fabric.sender import Sender
from rocstar.sandbox.fabric.wire import Outcome, WorkerInfo, full_error
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError, deadline_error

COUNTERS = (
    *("calls", "entries", "late_answers", "lost_entries", "resent_calls", "retries"),
    *("cancelled", "deadlines", "refused", "unreachable", "unreadable"),
)

AUTO = "auto"
SMALLEST_SHARE = 4
WATCH_S = 0.25
CLOSE_TIMEOUT_S = 1.0


class RedisFabric:
    """Runs programs on the workers that listen at `url`. Use it as an async context manager.

    Args:
        entry_calls: the maximum of calls of a batch in one entry; entries are smaller if several workers can
            share the batch.
        patience_s: seconds without an answer of Redis, or without a worker of a flavour, after which the
            calls that wait for it fail with kind `fabric`.
        max_attempts: attempts of a call whose worker reports a retryable failure of its sandbox.
        audit_s: the interval at which the client checks that Redis still has its entries.
        weights: weights of owners, default 1, as for SandboxPool; sent to the workers with each call.
        note: receives a line when Redis becomes unreachable and when it answers again.

    A call fails with SandboxError of kind `full` if this client has `max_calls` open calls, if their programs
    take about `max_bytes`, or while a calls stream has `max_queued_entries`.

    Invariant: every call ends in exactly one result, SandboxError or cancellation, whatever Redis and the
    workers do; no call waits indefinitely while `patience_s` is finite.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = PREFIX,
        entry_calls: int = 16,
        max_calls: int = 131_072,
        max_bytes: int = 1 << 30,
        max_queued_entries: int = 16_384,
        patience_s: float = 30.0,
        max_attempts: int = 3,
        audit_s: float = 0.5,
        weights: Mapping[str, int] | None = None,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        for name, value in (
            ("entry_calls", entry_calls),
            ("max_calls", max_calls),
            ("max_bytes", max_bytes),
            ("max_queued_entries", max_queued_entries),
            ("max_attempts", max_attempts),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self._connection = RedisConnection(url, note=note)
        self._redis = ClientCommands(self._connection.redis, prefix, unique_name())
        self._entry_calls = entry_calls
        self._max_calls = max_calls
        self._weights = weights or {}
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._open_calls = OpenCalls(max_attempts=max_attempts, windows=dict.fromkeys(FLAVOURS, UNSERVED))
        self._counts: Counter[str] = Counter()
        self._batches = itertools.count(1)
        self._sender = Sender(self._redis, self._open_calls, self._counts, max_queued_entries=max_queued_entries)
        self._wake = self._sender.wake.set
        self._receiver = Receiver(
            self._connection, self._redis, self._open_calls, self._counts, self._sender, audit_s=audit_s
        )
        self._main: asyncio.Task[None] | None = None
        self._closed: SandboxError | None = SandboxError(
            "the fabric is not open; use `async with`", kind="closed", retryable=False
        )

    async def __aenter__(self) -> Self:
        """Raise SandboxError of kind `fabric` if Redis does not answer within `patience_s`."""
        try:
            await self._connection.open(self._patience_s)
            await self._receiver.refresh()
        except REDIS_ERRORS as error:
            await self._connection.close()
            raise self._unreachable(error) from None
        except (SandboxError, asyncio.CancelledError):
            await self._connection.close()
            raise
        self._closed = None
        self._main = asyncio.create_task(self._serve(), name="fabric client")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._main is not None
        self._close(SandboxError("the fabric is closed", kind="closed", retryable=False))
        self._connection.closing = True
        self._main.cancel()
        try:
            await asyncio.wait([self._main])
            with contextlib.suppress(*REDIS_ERRORS, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._sender.delete_abandoned()
                    await self._redis.leave()
        finally:
            await self._connection.close()
        if not self._main.cancelled() and (failure := self._main.exception()) is not None:
            raise failure

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        """Run one program. `deadline`: absolute `loop.time()`. Raise SandboxError if the fabric fails."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def settle(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        share = self._share(self._entry_calls)
        call_id = self._open(request, settle, deadline=deadline, batch=NO_BATCH, entry_calls=share)
        try:
            async with asyncio.timeout_at(deadline):
                outcome = await future
        except TimeoutError:
            if future.cancelled():
                self._end_late([call_id])
                raise deadline_error() from None
            outcome = future.result()  # it arrived at the deadline
        finally:
            self._drop([call_id])
        self._note(outcome)
        if isinstance(outcome, SandboxError):
            raise outcome
        return outcome

    async def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, Outcome]]:
        """Yield (index, outcome) as programs finish, each index once. Closing it cancels the rest."""
        share, number = self._share(len(requests)), next(self._batches)

        def open_call(request: ExecRequest, settle: Callable[[Outcome], None]) -> int:
            return self._open(request, settle, deadline=deadline, batch=number, entry_calls=share)

        most_in_redis = max(window.most for window in self._open_calls.windows.values())
        batch = PrefetchedBatch(requests, open_call, ahead=AHEAD_CALLS + most_in_redis)
        try:
            try:
                while True:
                    await batch.open_more()
                    if batch.outcomes:
                        index, outcome, was_open = batch.read()
                        if was_open:
                            self._note(outcome)
                        yield index, outcome
                    elif batch.waiting:
                        async with asyncio.timeout_at(deadline):
                            await batch.wait()
                    else:
                        return
            except TimeoutError:
                while batch.outcomes:  # they arrived at the deadline
                    index, outcome, _ = batch.read()
                    yield index, outcome
            late, call_ids = batch.left(), batch.calls()
            self._counts["deadlines"] += len(late) - len(call_ids)
            self._end_late(call_ids)
            batch.waiting.clear()
            for index in late:
                yield index, deadline_error()
        finally:
            self._drop(batch.calls())

    def _note(self, outcome: Outcome) -> None:
        """Count a deadline that a worker reported first."""
        if isinstance(outcome, SandboxError) and outcome.kind == "deadline":
            self._counts["deadlines"] += 1

    def _end_late(self, call_ids: Sequence[int]) -> None:
        """Drop calls whose deadline passed. A call that was answered meanwhile counts: its answer is not
        read."""
        self._counts["deadlines"] += sum(call_id not in self._open_calls.calls for call_id in call_ids)
        self._drop(call_ids, "deadlines")

    async def workers(self) -> list[WorkerInfo]:
        """Return the live workers. Raise SandboxError of kind `fabric` if Redis does not answer."""
        try:
            await self._receiver.refresh()
        except REDIS_ERRORS as error:
            raise self._unreachable(error) from None
        return list(self._receiver.workers)

    @property
    def capacity(self) -> int:
        """The number of programs that all live workers run at a time, at most `audit_s` old while Redis
        answers."""
        return sum(worker.capacity for worker in self._receiver.workers)

    def counters(self) -> Mapping[str, int]:
        """Return counts since the start: `calls`, `entries` sent, `late_answers` (to calls that were already
        settled or cancelled), `lost_entries` (Redis lost them), `resent_calls`, `retries` of retryable
        failures, `cancelled`, `deadlines`, `refused`, `unreachable`, `unreadable`, `reconnects`."""
        return {**dict.fromkeys(COUNTERS, 0), **self._counts, "reconnects": self._connection.reconnects}

    def _open(
        self,
        request: ExecRequest,
        settle: Callable[[Outcome], None],
        *,
        deadline: float | None,
        batch: int,
        entry_calls: int,
    ) -> int:
        if self._closed is not None:
            raise self._closed
        if not (isinstance(request.code, str) and isinstance(request.stdin, str)):
            raise TypeError("code and stdin must be text")
        if request.flavour == AUTO:
            offered = self._receiver.flavours or self._receiver.served_at.keys() or FLAVOURS.keys()
            request = dataclasses.replace(request, flavour=select_flavour(request.code, offered))
        elif request.flavour not in FLAVOURS:
            raise SandboxError(
                f"unknown flavour {request.flavour!r}. Choose from {', '.join(FLAVOURS)}.",
                kind="unknown_flavour",
                retryable=False,
            )
        if weight := self._weights.get(request.owner):
            request = dataclasses.replace(request, weight=weight)
        now = asyncio.get_running_loop().time()
        if deadline is not None and deadline <= now:
            self._counts["deadlines"] += 1
            raise deadline_error()
        if len(self._open_calls.calls) >= self._max_calls:
            self._counts["refused"] += 1
            raise full_error(f"this client has {self._max_calls} calls open")
        if self._open_calls.weight >= self._max_bytes:
            self._counts["refused"] += 1
            raise full_error(f"the programs of this client's open calls take {self._max_bytes} bytes")
        self._counts["calls"] += 1
        call = self._open_calls.open(
            request, settle, deadline=deadline, opened_at=now, batch=batch, entry_calls=entry_calls
        )
        self._wake()
        return call.id

    def _drop(self, call_ids: Iterable[int], why: str = "cancelled") -> None:
        """Drop the calls that have no outcome yet."""
        open_ids = [call_id for call_id in call_ids if call_id in self._open_calls.calls]
        if open_ids:
            self._counts[why] += len(open_ids)
            self._open_calls.drop(open_ids)
            self._wake()

    def _share(self, calls: int) -> int:
        """Return the calls per entry of a batch: fewer if several workers can share the batch."""
        parts = 2 * max(1, len(self._receiver.workers))
        return min(self._entry_calls, max(SMALLEST_SHARE, -(-calls // parts)))

    def _close(self, error: SandboxError) -> None:
        self._closed = error
        self._open_calls.fail(list(self._open_calls.calls), error)

    async def _serve(self) -> None:
        """Run the four tasks. An unexpected exception in one of them fails all calls and is raised when the
        context ends."""
        try:
            async with asyncio.TaskGroup() as group:
                for step in (self._sender.write, self._receiver.read, self._receiver.audit):
                    group.create_task(self._connection.forever(step, self._wake), name=step.__name__)
                group.create_task(self._watch(), name="_watch")
        finally:
            if self._closed is None:
                self._close(SandboxError("the fabric client has failed", kind="fabric", retryable=False))

    async def _watch(self) -> None:
        """Fail the calls that waited longer than `patience_s` for Redis or for a worker."""
        while True:
            await asyncio.sleep(WATCH_S)
            unserved = self._open_calls.flavours.keys() - self._receiver.flavours
            if not unserved and self._connection.down_since is None:
                continue
            for number, call in enumerate(list(self._open_calls.calls.values()), 1):
                if (error := self._timeout_error(call)) is not None:
                    self._counts["unreachable"] += 1
                    self._open_calls.fail([call.id], error)
                    self._wake()
                if number % OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _timeout_error(self, call: OpenCall) -> SandboxError | None:
        """Return the error of a call that waited longer than `patience_s`, else None."""
        receiver, flavour = self._receiver, call.request.flavour
        if self._connection.down_since is not None:
            down_s = self._connection.down_s(call.opened_at)
            return self._connection.error(down_s) if down_s > self._patience_s else None
        served_at = max(call.opened_at, receiver.served_at.get(flavour, 0.0), receiver.looking_since)
        unserved_s = receiver.counted_at - served_at
        if unserved_s <= self._patience_s:
            return None
        return SandboxError(
            f"no worker of flavour {flavour} has been alive for {unserved_s:.1f} s. Start one: "
            + shell_command("sandbox", "worker", "--flavours", flavour, "--redis", "URL"),
            kind="fabric",
            retryable=True,
        )

    def _unreachable(self, error: BaseException) -> SandboxError:
        return SandboxError(
            f"Redis at {self._connection.redacted_url} does not answer ({type(error).__name__}: {error})",
            kind="fabric",
            retryable=True,
        )
