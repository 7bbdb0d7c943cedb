"""The fabric as a caller sees it: a BatchSandbox whose programs run on any node that has a worker.

    run, run_batch -> CallLedger -> Sender.write -- entries --> calls stream per flavour ==> workers
          ^             |  ^                                                               |
          |             |  +--- Receiver.audit: is every entry still there? lease, live workers
          +-- settle ---+------ Receiver.read <-- answers --- reply stream of this client <+

Callers wait for their own futures and for nothing else. The tasks of a client wait for Redis, each for at
most a socket timeout, and never for each other; `_watch` waits for nobody and ends what takes too long.

At-least-once inside: an entry is run again when its worker dies (by another worker), when Redis lost it (this
client sends it again) or when sending was cut (sent again, perhaps twice). Exactly one outcome outside: the
ledger settles a call once and ignores what comes after.
"""

import asyncio
import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.child.import_scan import select_flavour
from rocstar.sandbox.fabric.ahead import AHEAD_CALLS, OPENED_AT_ONCE, AheadBatch
from rocstar.sandbox.fabric.client_commands import ClientCommands
from rocstar.sandbox.fabric.errors import deadline_error, full_error, no_worker_error, unknown_flavour_error
from rocstar.sandbox.fabric.ledger import CallLedger, OpenCall
from rocstar.sandbox.fabric.link import PREFIX, REDIS_ERRORS, Keys, Link, unique_name
from rocstar.sandbox.fabric.receiver import Receiver
from rocstar.sandbox.fabric.sender import Sender
from rocstar.sandbox.fabric.stored_pieces import StoredPieces
from rocstar.sandbox.fabric.wire import Outcome
from rocstar.sandbox.fabric.workers import WorkerInfo
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError

COUNTERS = (
    "calls",
    "entries",
    "late_answers",
    "lost_entries",
    "resent_calls",
    "retries",
    "cancelled",
    "deadlines",
    "refused",
    "unreachable",
    "unreadable",
)

AUTO = "auto"
SMALLEST_SHARE = 4
WATCH_S = 0.25
CLOSE_TIMEOUT_S = 1.0


class RedisFabric:
    """Runs programs on the workers that listen at `url`. Use it as an async context manager.

    Args:
        entry_calls: most calls of a batch that travel together; a batch is cut finer when several workers can
            share it.
        patience_s: how long Redis may be silent, or no worker alive for a flavour, before the calls that wait
            for it fail with kind `fabric`.
        max_attempts: how often a call is tried whose worker reports a retryable failure of its sandbox.
        audit_s: how often the client looks whether Redis still has its entries.
        weights: of owners, 1 for those left out, as of SandboxPool; workers are told.
        note: gets a line when Redis is away, and when it is back.

    Refused with SandboxError of kind `full` are calls beyond `max_calls` open ones of this client, beyond
    about `max_bytes` of their programs, and while a calls stream has `max_queued_entries`.

    Invariant: every call ends in exactly one result, SandboxError or cancellation, whatever Redis and the
    workers do; nothing waits for ever while `patience_s` is finite.
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
        self._link = Link(url, note=note)
        name, keys = unique_name(), Keys(prefix)
        self._redis = ClientCommands(self._link, keys, name)
        self._entry_calls = entry_calls
        self._max_calls = max_calls
        self._weights = weights or {}
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._ledger = CallLedger(max_attempts=max_attempts)
        self._counts: Counter[str] = Counter()
        self._batches = itertools.count(1)
        stored = StoredPieces(self._link, keys)
        self._sender = Sender(
            self._redis,
            stored,
            self._ledger,
            self._counts,
            client=name,
            max_queued_entries=max_queued_entries,
        )
        self._wake = self._sender.wake.set
        self._receiver = Receiver(
            self._link,
            self._redis,
            stored,
            self._ledger,
            self._counts,
            self._wake,
            pieces=self._sender.pieces,
            audit_s=audit_s,
        )
        self._main: asyncio.Task[None] | None = None
        self._closed: SandboxError | None = SandboxError(
            "the fabric is not open; use `async with`", kind="closed", retryable=False
        )

    async def __aenter__(self) -> Self:
        """Raises SandboxError of kind `fabric` when Redis does not answer within `patience_s`."""
        try:
            await self._link.open(self._patience_s)
            await self._receiver.refresh()
        except REDIS_ERRORS as error:
            await self._link.close()
            raise self._unreachable(error) from None
        except (SandboxError, asyncio.CancelledError):
            await self._link.close()
            raise
        self._closed = None
        self._main = asyncio.create_task(self._serve(), name="fabric client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._main is not None
        self._close(SandboxError("the fabric is closed", kind="closed", retryable=False))
        self._link.closing = True
        self._main.cancel()
        try:
            await asyncio.wait([self._main])
            with contextlib.suppress(*REDIS_ERRORS, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._sender.delete_abandoned()
                    await self._redis.leave()
        finally:
            await self._link.close()
        if not self._main.cancelled() and (failure := self._main.exception()) is not None:
            raise failure

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        """Runs one program. `deadline`: absolute `loop.time()`. Raises SandboxError for failures of ours."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def settle(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        share = self._share(self._entry_calls)
        call_id = self._open(request, settle, deadline=deadline, batch=0, entry_calls=share)
        try:
            async with asyncio.timeout_at(deadline):
                outcome = await future
        except TimeoutError:
            if future.cancelled():
                self._end_late([call_id])
                raise deadline_error() from None
            outcome = future.result()  # it came at the same moment
        finally:
            self._drop([call_id])
        self._note(outcome)
        if isinstance(outcome, SandboxError):
            raise outcome
        return outcome

    async def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, Outcome]]:
        """Yields (index, outcome) as programs finish, each index once. Closing it cancels the rest."""
        share, number = self._share(len(requests)), next(self._batches)

        def open_call(request: ExecRequest, settle: Callable[[Outcome], None]) -> int:
            return self._open(request, settle, deadline=deadline, batch=number, entry_calls=share)

        batch = AheadBatch(requests, open_call, ahead=AHEAD_CALLS + self._receiver.most_in_redis)
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
                while batch.outcomes:  # that came at the same moment
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
        """A worker may say first that the deadline has passed."""
        if isinstance(outcome, SandboxError) and outcome.kind == "deadline":
            self._counts["deadlines"] += 1

    def _end_late(self, call_ids: Sequence[int]) -> None:
        """Their deadline has passed here. Who was answered at the same moment counts too: nobody reads it."""
        self._counts["deadlines"] += sum(call_id not in self._ledger.calls for call_id in call_ids)
        self._drop(call_ids, "deadlines")

    async def workers(self) -> list[WorkerInfo]:
        """The workers that are alive now. Raises SandboxError of kind `fabric` when Redis does not answer."""
        try:
            await self._receiver.refresh()
        except REDIS_ERRORS as error:
            raise self._unreachable(error) from None
        return list(self._receiver.workers)

    async def queue_length(self) -> int:
        """Entries of all clients that are waiting or being run, over the flavours that are known here."""
        flavours = {flavour for worker in await self.workers() for flavour in worker.flavours}
        flavours |= self._ledger.flavours.keys()
        try:
            return sum((await self._redis.queue_lengths(flavours)).values())
        except REDIS_ERRORS as error:
            raise self._unreachable(error) from None

    @property
    def capacity(self) -> int:
        """Programs that the workers alive run at a time, as of the last look (`audit_s` ago at most, while
        Redis answers)."""
        return sum(worker.capacity for worker in self._receiver.workers)

    @property
    def open_calls(self) -> int:
        """Calls of this client that have no outcome yet."""
        return len(self._ledger.calls)

    def counters(self) -> Mapping[str, int]:
        """Since the start: `calls`, `entries` sent, `late_answers` (to calls that were settled already: a
        second delivery, or a caller that had gone), `lost_entries` (Redis lost them), `resent_calls`,
        `retries` of retryable failures, `cancelled`, `deadlines`, `refused`, `unreachable`, `unreadable`,
        `reconnects`."""
        return {**dict.fromkeys(COUNTERS, 0), **self._counts, "reconnects": self._link.reconnects}

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
            raise unknown_flavour_error(request.flavour)
        if weight := self._weights.get(request.owner):
            request = dataclasses.replace(request, weight=weight)
        now = asyncio.get_running_loop().time()
        if deadline is not None and deadline <= now:
            self._counts["deadlines"] += 1
            raise deadline_error()
        if len(self._ledger.calls) >= self._max_calls:
            self._counts["refused"] += 1
            raise full_error(f"this client has {self._max_calls} calls open")
        if self._ledger.weight >= self._max_bytes:
            self._counts["refused"] += 1
            raise full_error(f"the programs of this client's open calls take {self._max_bytes} bytes")
        self._counts["calls"] += 1
        call = self._ledger.open(
            request, settle, deadline=deadline, opened_at=now, batch=batch, entry_calls=entry_calls
        )
        self._wake()
        return call.id

    def _drop(self, call_ids: Iterable[int], why: str = "cancelled") -> None:
        """Forgets those calls that have no outcome yet."""
        open_ids = [call_id for call_id in call_ids if call_id in self._ledger.calls]
        if open_ids:
            self._counts[why] += len(open_ids)
            self._ledger.drop(open_ids)
            self._wake()

    def _share(self, calls: int) -> int:
        """How many calls of a batch travel together: fewer when several workers can share the batch."""
        parts = 2 * max(1, len(self._receiver.workers))
        return min(self._entry_calls, max(SMALLEST_SHARE, -(-calls // parts)))

    def _close(self, error: SandboxError) -> None:
        self._closed = error
        self._ledger.fail(list(self._ledger.calls), error)

    async def _serve(self) -> None:
        """The four tasks. A mistake of ours in one of them ends all calls with an error, and is raised when
        the context ends."""
        try:
            async with asyncio.TaskGroup() as group:
                for step in (self._sender.write, self._receiver.read, self._receiver.audit):
                    group.create_task(self._link.forever(step, self._wake), name=step.__name__)
                group.create_task(self._watch(), name="_watch")
        finally:
            if self._closed is None:
                self._close(SandboxError("the fabric client has failed", kind="fabric", retryable=False))

    async def _watch(self) -> None:
        """Ends the wait for a Redis that does not answer and for workers that do not come."""
        while True:
            await asyncio.sleep(WATCH_S)
            calls = list(self._ledger.calls.values()) if self._is_waiting_in_vain() else []
            for number, call in enumerate(calls, 1):
                if (error := self._verdict(call)) is not None:
                    self._counts["unreachable"] += 1
                    self._ledger.fail([call.id], error)
                    self._wake()
                if number % OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _verdict(self, call: OpenCall) -> SandboxError | None:
        """That it waits in vain, if it does."""
        receiver, flavour = self._receiver, call.request.flavour
        if self._link.down_since is not None:
            down_s = self._link.down_s(call.opened_at)
            return self._link.error(down_s) if down_s > self._patience_s else None
        served_at = max(call.opened_at, receiver.served_at.get(flavour, 0.0), receiver.looking_since)
        unserved_s = receiver.counted_at - served_at
        return no_worker_error(flavour, unserved_s) if unserved_s > self._patience_s else None

    def _is_waiting_in_vain(self) -> bool:
        if not self._ledger.calls:
            return False
        unserved = self._ledger.flavours.keys() - self._receiver.flavours
        return bool(unserved) or self._link.down_since is not None

    def _unreachable(self, error: BaseException) -> SandboxError:
        return SandboxError(
            f"Redis at {self._link.shown} does not answer ({type(error).__name__}: {error})",
            kind="fabric",
            retryable=True,
        )
