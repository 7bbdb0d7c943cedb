"""The calls of a pool: accepted, sent, settled.

    submit -> room (max_queued) -> lanes -> window -> supervisor
                                                ^           |
      caller's future <-- settle <--------------+-----------+

A caller waits first for room (that is the back-pressure), then for its future. The window is what the
supervisor holds at a time: enough that a finished child is followed by the next without asking a busy event
loop, few enough that little is lost with it. Calls that were lost with a supervisor are sent again, for
programs have no effect outside; calls of sessions are not, for their state is gone.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.lanes import Lanes
from rocstar.sandbox.pool.taken import Taken
from rocstar.sandbox.pool.turn import TurnLock
from rocstar.sandbox.types import ExecResult, Limits, SandboxError, SessionLost

MAX_ATTEMPTS = 4
"""A call that was lost so often with its supervisor is given up."""


SPARE = 64
"""Places in the window for lanes that have nothing there."""

SENT_BYTES = 1 << 20
"""Of programs, after which others have a turn before more are sent."""

MAX_UNREAD_BYTES = 64 << 20
"""A batch starts nothing more while so much of its output waits to be read."""


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Call:
    """A call of the supervisor until it is answered.

    Args:
        encode: the pieces of the frame, given the call's id.
        longest_s: how long it may take once it runs.
        restartable: it can be sent to another supervisor.
        opens: the limits of the session that it starts.
        lane: calls of one wait for each other, those of different ones share the places.
        weight: of the lane, against others.
        taken: what comes before the result.
        then: called once the supervisor has answered, which a caller that was cancelled does not wait for.
    """

    encode: Callable[[int], list[bytes]]
    longest_s: float
    restartable: bool
    opens: Limits | None = None
    lane: int = 0
    weight: int = 1
    taken: Taken = field(default_factory=Taken)
    then: Callable[[], None] | None = None
    id: int = 0
    attempts: int = 0
    future: asyncio.Future[Any] = field(default_factory=_future)


class Line(Protocol):
    """The way to the supervisor. `ready`: whether one takes frames now; asks for another when it is dead."""

    def ready(self) -> bool: ...

    def write(self, *pieces: bytes) -> None: ...


class Calls:
    """Those that a pool has accepted. window: how many the supervisor holds at a time. unclaimed: told of an
    outcome whose caller is gone.

    Invariant: every call that was submitted ends once, by a result, a SandboxError or its cancellation, and
    gives its place back when neither the queue nor the supervisor holds it any more.
    """

    def __init__(
        self, line: Line, *, window: int, max_queued: int, unclaimed: Callable[[object], None]
    ) -> None:
        self.window = window
        self.room = TurnLock(window + max_queued)
        self.sent: dict[int, Call] = {}
        self._line = line
        self._unclaimed = unclaimed
        self._waiting: Lanes[Call] = Lanes()
        self._next_id = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self.sent)

    def longest_s(self) -> float | None:
        """The longest that a call with the supervisor may take; None when it has none."""
        return max((call.longest_s for call in self.sent.values()), default=None)

    # --- the caller's side -------------------------------------------------------------------------------

    async def perform(self, call: Call, deadline: float | None) -> Any:
        """The call's outcome. Raises SandboxError. When it is cancelled, so is what it started."""
        taken = False
        try:
            if self.room.try_take():  # nothing is waited for
                self._placed(call)
            else:
                async with asyncio.timeout_at(deadline):
                    await self.submit(call)
            if deadline is None:
                outcome = await call.future
            else:  # a bare timer, which takes a quarter of the time of an `asyncio.timeout`
                timer = asyncio.get_running_loop().call_at(deadline, _expire, call.future)
                try:
                    outcome = await call.future
                finally:
                    timer.cancel()
            taken = True
            if call.taken and isinstance(outcome, ExecResult):
                async with asyncio.timeout_at(deadline):
                    outcome = await call.taken.added_to(outcome)
            return outcome
        except TimeoutError:
            raise late() from None
        finally:
            if not taken:
                self.abandon(call)

    async def submit(self, call: Call) -> None:
        """Returns when the call has a place, and is sent as soon as the window has one."""
        await self.accept(call)
        self.send_more()

    async def accept(self, call: Call) -> None:
        """Returns when the call has a place. It waits for the next `send_more`."""
        self._check_open()
        await self.room.take(None)
        if self._closed:  # meanwhile
            self.room.give()
        self._check_open()
        self._waiting.append(call.lane, call, call.weight)

    def _placed(self, call: Call) -> None:
        """`submit`, once the call has its place."""
        if self._closed:
            self.room.give()
            self._check_open()
        waiting = self._waiting
        if waiting.size or len(self.sent) >= self.window or not self._line.ready():
            waiting.append(call.lane, call, call.weight)
            self.send_more()
            return
        waiting.pass_by(call.lane, call.weight)
        if frames := self._frames_of(call):
            self._line.write(*frames)

    def abandon(self, call: Call) -> None:
        """Nobody waits for it any more: what is under way is killed, and its place given back after that."""
        if not call.future.done():
            call.future.cancel()
        elif not call.future.cancelled() and call.future.exception() is None:
            self._unclaimed(call.future.result())
        if call.id in self.sent:
            self._line.write(wire.encode_id(wire.CANCEL, call.id))

    def when_answered(self, call: Call, then: Callable[[], None]) -> None:
        """Calls `then` once the supervisor has not got the call any more. A cell whose caller was cancelled
        still has the interpreter until it was interrupted."""
        if call.id in self.sent:
            call.then = then
        else:
            then()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox pool is closed", kind="closed", retryable=False)

    # --- the supervisor's side ---------------------------------------------------------------------------

    def send_more(self) -> None:
        """Sends what fits into the window, of the lanes with least under way; of long programs one at a time,
        for each takes some of the loop's time."""
        if not self._waiting.size or not self._line.ready():
            return
        frames: list[bytes] = []
        size = 0
        while self._waiting.size and self._fits():
            if size >= SENT_BYTES:
                asyncio.get_running_loop().call_soon(self.send_more)
                break
            call = self._waiting.pop()
            if call.future.done():  # cancelled while it waited
                self._waiting.ended(call.lane)
                self.room.give()
            else:
                pieces = self._frames_of(call)
                frames += pieces
                size += sum(map(len, pieces))
        if frames:
            self._line.write(*frames)

    def _frames_of(self, call: Call) -> list[bytes]:
        """With them the supervisor has it. One that is too long to be sent has none: it has ended."""
        self._next_id = call.id = self._next_id + 1
        call.attempts += 1
        try:
            frames = call.encode(call.id)
        except ValueError as error:
            self._waiting.ended(call.lane)
            self.room.give()
            call.future.set_exception(error)
            return []
        self.sent[call.id] = call
        return frames

    def _fits(self) -> bool:
        """One of a lane that has nothing with the supervisor does not wait behind the window: that is for
        those that have, and a call of theirs may take its time."""
        if len(self.sent) < self.window:
            return True
        return len(self.sent) < self.window + SPARE and self._waiting.next_has_nothing()

    def tell(self, call_id: int, stream: str, data: bytes) -> None:
        """Output of a call that is followed. What its caller's function raises is that caller's outcome: to
        the supervisor's connection it would be the end, and that of everybody's sessions."""
        call = self.sent[call_id]
        if call.future.done():  # nobody listens
            return
        try:
            call.taken.output(stream, data)
        except Exception as error:  # whatever somebody's own function may raise
            stop = isinstance(error, StopIteration)  # which no future takes
            call.future.set_exception(RuntimeError("on_output raised StopIteration") if stop else error)

    def settle(self, call_id: int, outcome: object) -> None:
        """The supervisor has answered. `send_more` follows once all answers that came with this one are."""
        call = self.sent.pop(call_id)
        self._waiting.ended(call.lane)
        self._end(call)
        if call.future.done():
            self._unclaimed(outcome)
        elif isinstance(outcome, SandboxError):
            call.future.set_exception(outcome)
        else:
            call.future.set_result(outcome)

    def take_back(self) -> None:
        """The supervisor died: what can be sent again waits in front of all others."""
        lost = [self.sent.pop(call_id) for call_id in sorted(self.sent)]
        for call in lost:
            self._waiting.ended(call.lane)
        for call in reversed(lost):
            if not call.restartable:
                message = "the sandbox supervisor died, and the session with it"
                self._fail(call, SessionLost(message, reason="supervisor_died"))
            elif call.attempts >= MAX_ATTEMPTS:
                message = f"the sandbox supervisor died {MAX_ATTEMPTS} times under this call"
                self._fail(call, SandboxError(message, kind="supervisor_died", retryable=True))
            elif call.future.done():
                self.room.give()
            else:
                call.taken = Taken()  # what came of its files comes again
                self._waiting.append_first(call.lane, call)

    def close(self) -> None:
        """Fails all calls, and refuses those to come."""
        self._closed = True
        self.fail_all(SandboxError("the sandbox pool is closed", kind="closed", retryable=False))

    def fail_all(self, why: SandboxError) -> None:
        calls = [*self.sent.values(), *self._waiting.clear()]
        self.sent.clear()
        for call in calls:
            self._fail(call, SandboxError(str(why), kind=why.kind, retryable=why.retryable))

    def _fail(self, call: Call, error: SandboxError) -> None:
        self._end(call)
        if not call.future.done():
            call.future.set_exception(error)
            call.future.exception()  # whoever waits still gets it; nobody need wait

    def _end(self, call: Call) -> None:
        self.room.give()
        if call.then is not None:
            call.then()

    # --- many at once ------------------------------------------------------------------------------------

    async def perform_all(
        self,
        requests: Sequence[object],
        call_of: Callable[[object], Call],
        deadline: float | None,
    ) -> AsyncGenerator[tuple[int, ExecResult | SandboxError], None]:
        """See BatchSandbox.run_batch. Each request is asked for when its turn comes; one for which `call_of`
        raises SandboxError has that for its outcome."""
        batch = _Batch(self, requests, call_of)
        try:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        outcome = await batch.next()
                except TimeoutError:
                    break
                if outcome is None:
                    return
                yield outcome
            for index in batch.left():
                yield index, late()
        finally:
            batch.abandon()


class _Batch:
    """Requests that are submitted a little ahead of whoever reads their outcomes. No task per call: futures
    whose callbacks fill one queue.

    Invariant: at most `ahead` are submitted and not read, and none is submitted while `MAX_UNREAD_BYTES` of
    output wait."""

    def __init__(self, calls: Calls, requests: Sequence[object], call_of: Callable[[object], Call]) -> None:
        self._calls = calls
        self._requests = requests
        self._call_of = call_of
        self._ahead = 2 * calls.window + 16  # the supervisor has enough, and the next in line are there
        self._next = 0
        self._submitted: dict[int, Call] = {}  # by index, those that are not read
        self._done: asyncio.Queue[int] = asyncio.Queue()
        self._unread_bytes = 0

    async def next(self) -> tuple[int, ExecResult | SandboxError] | None:
        """An outcome that nobody has read; None after the last. Raises what is no outcome of a call."""
        if (refused := await self._submit_more()) is not None:
            return refused
        if not self._submitted:
            return None
        index = await self._done.get()
        call = self._submitted[index]
        future = call.future
        self._unread_bytes -= _size_of(call)
        failure = future.exception()
        if failure is None:
            # It counts as read once its texts are: a deadline that passes until then is told of it, too.
            outcome: ExecResult = await call.taken.added_to(future.result())
            del self._submitted[index]
            return index, outcome
        del self._submitted[index]
        if isinstance(failure, ValueError):  # too long to be sent
            return index, SandboxError(str(failure), kind="too_large", retryable=False)
        if not isinstance(failure, SandboxError):
            raise failure
        return index, failure

    async def _submit_more(self) -> tuple[int, SandboxError] | None:
        """Returns early with a request that was refused."""
        try:
            return await self._accept_more()
        finally:
            self._calls.send_more()  # all at once

    async def _accept_more(self) -> tuple[int, SandboxError] | None:
        while self._next < len(self._requests):
            waits = len(self._submitted) >= self._ahead or self._unread_bytes > MAX_UNREAD_BYTES
            if self._submitted and (waits or not self._calls.room.free):
                return None  # an outcome to come makes room
            index = self._next
            try:
                call = self._call_of(self._requests[index])
                await self._calls.accept(call)
            except SandboxError as error:
                self._next += 1
                return index, error
            self._next += 1
            self._submitted[index] = call
            call.future.add_done_callback(lambda future, index=index, call=call: self._ended(index, call))  # type: ignore[misc]
        return None

    def _ended(self, index: int, call: Call) -> None:
        self._unread_bytes += _size_of(call)
        self._done.put_nowait(index)

    def left(self) -> list[int]:
        """Those without an outcome, in order."""
        return [*sorted(self._submitted), *range(self._next, len(self._requests))]

    def abandon(self) -> None:
        for call in self._submitted.values():
            self._calls.abandon(call)


def _size_of(call: Call) -> int:
    """What an outcome holds of memory, for the most part."""
    future = call.future
    if future.cancelled() or future.exception() is not None:
        return 0
    result = future.result()
    if not isinstance(result, ExecResult):
        return 0
    return len(result.stdout) + len(result.stderr) + call.taken.bytes


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(late())


def late() -> SandboxError:
    return SandboxError("the deadline passed before the program ended", kind="deadline", retryable=True)
