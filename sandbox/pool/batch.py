"""A batch of requests, each with its own outcome.

    requests --> submitted, a limited number ahead --> Calls --> ended --> outcomes, as they are read

The reader waits for an outcome, or for room in the pool while none of its own calls can free some; both until
the deadline, with one timer. There is no task and no future per call.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from rocstar.sandbox.pool.calls import Call, Calls
from rocstar.sandbox.types import ExecResult, SandboxError, deadline_error

MAX_UNREAD_BYTES = 64 << 20
"""The unread output above which a batch submits no more calls."""

CallOf = Callable[[object], Call]
Outcome = ExecResult | SandboxError


async def perform_all(
    calls: Calls, requests: Sequence[object], call_of: CallOf, deadline: float | None
) -> AsyncGenerator[tuple[int, Outcome], None]:
    """See BatchSandbox.run_batch. Each request is read when it is submitted; if `call_of` raises
    SandboxError, that is the request's outcome."""
    batch = PoolBatch(calls, requests, call_of, deadline)
    try:
        while True:
            if (refused := batch.submit_more()) is not None:
                yield refused
            elif batch.ended:
                call = batch.ended.popleft()
                if call.output.has_parts:
                    await batch.add_texts(call)
                yield batch.read(call)
            elif batch.submitted:
                await batch.wait()
            elif batch.next == len(requests):
                return
            elif (refused := await batch.wait_for_room()) is not None:
                yield refused
    except TimeoutError:
        for index in batch.left():
            yield index, deadline_error()
    finally:
        batch.close()


class PoolBatch:
    """The calls of a batch, submitted a limited number ahead of the reader of their outcomes.

    submitted: unread calls by the index of their requests. ended: those of them that have an outcome, with
    `unread_bytes` of output. next: the index of the first request that is not submitted.

    Invariant: at most `ahead` calls are submitted and unread, and none is submitted while `MAX_UNREAD_BYTES`
    of output are unread.
    """

    def __init__(self, calls: Calls, requests: Sequence[object], call_of: CallOf, deadline: float | None) -> None:
        loop = asyncio.get_running_loop()
        self.submitted: dict[int, Call] = {}
        self.ended: deque[Call] = deque()
        self._calls = calls
        self._requests = requests
        self._call_of = call_of
        self._deadline = deadline
        self._ahead = 2 * calls.window + 16  # keeps the supervisor busy while the reader is behind
        self.next = 0
        self.unread_bytes = 0
        self._expired = False
        self._new_future = loop.create_future
        self._waiter: asyncio.Future[None] | None = None
        self._timer = None if deadline is None else loop.call_at(deadline, self._expire)

    def submit_more(self) -> tuple[int, SandboxError] | None:
        """Submit calls up to the limits. Return early with (index, error) of a rejected request."""
        refused = None
        begin = self.next
        while refused is None and self._may_submit():
            try:
                call = self._call_of(self._requests[self.next])
                self._calls.accept_now(call)
            except SandboxError as error:
                refused = self.next, error
                self.next += 1
            else:
                self._was_accepted(call)
        if self.next > begin:
            self._calls.send_more()  # with one write
        return refused

    def _may_submit(self) -> bool:
        """Return True if the limits and the pool allow another call."""
        return (
            self.next < len(self._requests)
            and self._calls.room.free > 0
            and len(self.submitted) < self._ahead
            and (self.unread_bytes <= MAX_UNREAD_BYTES or not self.submitted)
            and not self._expired
        )

    async def wait_for_room(self) -> tuple[int, SandboxError] | None:
        """Wait for room and submit the next request, because this batch has no call that could free room.
        Return (index, error) if it was rejected. Raise TimeoutError at the deadline."""
        try:
            call = self._call_of(self._requests[self.next])
            await self._calls.accept(call, self._deadline)
        except SandboxError as error:
            self.next += 1
            return self.next - 1, error
        self._was_accepted(call)
        self._calls.send_more()
        return None

    def _was_accepted(self, call: Call) -> None:
        call.index = self.next
        call.on_end = self._on_call_end
        self.submitted[self.next] = call
        self.next += 1

    def _on_call_end(self, call: Call) -> None:
        if isinstance(call.outcome, ExecResult):
            call.size_bytes = len(call.outcome.stdout) + len(call.outcome.stderr) + call.output.bytes
            self.unread_bytes += call.size_bytes
        self.ended.append(call)
        self._wake()

    async def wait(self) -> None:
        """Wait until a call has ended. Raise TimeoutError at the deadline."""
        if self._expired:
            raise TimeoutError
        self._waiter = self._new_future()
        await self._waiter

    async def add_texts(self, call: Call) -> None:
        """Add the long texts and files to the call's result. Raise TimeoutError at the deadline; the call
        then counts as unread."""
        if isinstance(call.outcome, ExecResult):
            async with asyncio.timeout_at(self._deadline):
                call.outcome = await call.output.add_to(call.outcome)

    def read(self, call: Call) -> tuple[int, Outcome]:
        """Return (index, outcome) of an ended call. Raise an exception that is not an outcome of a call."""
        self.unread_bytes -= call.size_bytes
        del self.submitted[call.index]
        outcome = call.outcome
        if isinstance(outcome, ExecResult | SandboxError):
            return call.index, outcome
        if isinstance(outcome, ValueError):  # too long to send
            return call.index, SandboxError(str(outcome), kind="too_large", retryable=False)
        assert isinstance(outcome, BaseException)
        raise outcome

    def left(self) -> list[int]:
        """Return the indices of the requests without a read outcome, in order."""
        return [*sorted(self.submitted), *range(self.next, len(self._requests))]

    def close(self) -> None:
        """Abandon the unread calls."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self.submitted.values():
            self._calls.abandon(call)

    def _expire(self) -> None:
        self._expired = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
