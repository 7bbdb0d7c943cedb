"""Many requests at once, each of which has an outcome by itself.

    requests --> submitted, a little ahead --> Calls --> ended --> outcomes, as they are read

Who waits: the reader, for an outcome, or for room in the pool while none of its own calls can make some; both
until the deadline, for which there is one timer. There is no task per call, and no future.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from rocstar.sandbox.pool.calls import Call, Calls, late
from rocstar.sandbox.types import ExecResult, SandboxError

MAX_UNREAD_BYTES = 64 << 20
"""A batch starts nothing more while so much of its output waits to be read."""

CallOf = Callable[[object], Call]
Outcome = ExecResult | SandboxError


async def perform_all(
    calls: Calls, requests: Sequence[object], call_of: CallOf, deadline: float | None
) -> AsyncGenerator[tuple[int, Outcome], None]:
    """See BatchSandbox.run_batch. Each request is asked for when its turn comes; one for which `call_of`
    raises SandboxError has that for its outcome."""
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
            elif not batch.has_more:
                return
            elif (refused := await batch.wait_for_room()) is not None:
                yield refused
    except TimeoutError:
        for index in batch.left():
            yield index, late()
    finally:
        batch.close()


class PoolBatch:
    """Requests that are submitted a little ahead of whoever reads their outcomes. `submitted`: the calls that
    are not read, by the places of their requests; `ended`: those of them that have an outcome, which holds
    `unread_bytes`.

    Invariant: at most `ahead` are submitted and not read, and none is submitted while `MAX_UNREAD_BYTES` of
    output wait."""

    def __init__(
        self, calls: Calls, requests: Sequence[object], call_of: CallOf, deadline: float | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.submitted: dict[int, Call] = {}
        self.ended: deque[Call] = deque()
        self._calls = calls
        self._requests = requests
        self._number = len(requests)
        self._call_of = call_of
        self._deadline = deadline
        self._ahead = 2 * calls.window + 16  # the supervisor has enough, and the next in line are there
        self._next = 0
        self.unread_bytes = 0
        self._expired = False
        self._new_future = loop.create_future
        self._waiter: asyncio.Future[None] | None = None
        self._timer = None if deadline is None else loop.call_at(deadline, self._expire)

    @property
    def has_more(self) -> bool:
        """Whether there are requests that were not submitted."""
        return self._next < self._number

    def submit_more(self) -> tuple[int, SandboxError] | None:
        """As many as may be ahead. Returns early with a request that was refused."""
        refused = None
        begin = self._next
        while refused is None and self._may_submit():
            try:
                call = self._call_of(self._requests[self._next])
                self._calls.accept_now(call)
            except SandboxError as error:
                refused = self._next, error
                self._next += 1
            else:
                self._was_accepted(call)
        if self._next > begin:
            self._calls.send_more()  # all at once
        return refused

    def _may_submit(self) -> bool:
        """Whether there is room for another. What is submitted makes some when it ends and is read."""
        return (
            self._next < self._number
            and self._calls.room.free > 0
            and len(self.submitted) < self._ahead
            and (self.unread_bytes <= MAX_UNREAD_BYTES or not self.submitted)
            and not self._expired
        )

    async def wait_for_room(self) -> tuple[int, SandboxError] | None:
        """Submits the next request: nothing of this batch is there that could make room. Returns it if it was
        refused. Raises TimeoutError at the deadline."""
        try:
            call = self._call_of(self._requests[self._next])
            await self._calls.accept(call, self._deadline)
        except SandboxError as error:
            self._next += 1
            return self._next - 1, error
        self._was_accepted(call)
        self._calls.send_more()
        return None

    def _was_accepted(self, call: Call) -> None:
        call.index = self._next
        call.on_end = self._on_call_end
        self.submitted[self._next] = call
        self._next += 1

    def _on_call_end(self, call: Call) -> None:
        """It has an outcome."""
        if isinstance(call.outcome, ExecResult):
            call.size_bytes = len(call.outcome.stdout) + len(call.outcome.stderr) + call.output.bytes
            self.unread_bytes += call.size_bytes
        self.ended.append(call)
        self._wake()

    async def wait(self) -> None:
        """Returns when a call has ended. Raises TimeoutError at the deadline."""
        if self._expired:
            raise TimeoutError
        self._waiter = self._new_future()
        await self._waiter

    async def add_texts(self, call: Call) -> None:
        """Those that were too long to be made at once. Raises TimeoutError at the deadline: it counts as read
        once they are there."""
        if isinstance(call.outcome, ExecResult):
            async with asyncio.timeout_at(self._deadline):
                call.outcome = await call.output.add_to(call.outcome)

    def read(self, call: Call) -> tuple[int, Outcome]:
        """The outcome of one that has ended. Raises what is no outcome of a call."""
        self.unread_bytes -= call.size_bytes
        del self.submitted[call.index]
        outcome = call.outcome
        if isinstance(outcome, ExecResult | SandboxError):
            return call.index, outcome
        if isinstance(outcome, ValueError):  # too long to be sent
            return call.index, SandboxError(str(outcome), kind="too_large", retryable=False)
        assert isinstance(outcome, BaseException)
        raise outcome

    def left(self) -> list[int]:
        """Those without an outcome, in order."""
        return [*sorted(self.submitted), *range(self._next, self._number)]

    def close(self) -> None:
        """Abandons what was not read."""
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
