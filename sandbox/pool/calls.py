"""The calls of a pool: accepted, sent, settled.

    submit -> room (max_queued) -> fair queue -> window -> supervisor
                                                   ^           |
         on_end, its caller <-- settle <-----------+-----------+

A caller waits for room (the back-pressure), then for its outcome. The window is the number of calls that the
supervisor holds: large enough that the next child starts without waiting for a busy event loop, small enough
that few calls are lost with a supervisor. Lost calls are sent again, because programs have no effect outside;
calls of sessions are not, because their state is gone.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.call_output import CallOutput
from rocstar.sandbox.pool.fair_queue import FairQueue
from rocstar.sandbox.pool.fifo_lock import FifoLock
from rocstar.sandbox.types import ExecResult, Limits, SandboxError, SessionLost, deadline_error

MAX_ATTEMPTS = 4
"""The number of supervisors that may die under a call before it fails."""

SPARE = 64
"""Extra places in the window for lanes that have no call there."""

SENT_BYTES = 1 << 20
"""The bytes of programs after which sending yields to the event loop."""

NOT_WANTED: Final = object()
"""The outcome of a call whose caller no longer waits."""


@dataclass(slots=True, eq=False)
class Call:
    """A call until the supervisor has answered it. Invariant: it gets one outcome, and `on_end` is called
    once with it, unless its caller no longer waits.

    Args:
        encode: returns the pieces of the frame for a call id.
        longest_s: the time limit of the running call.
        restartable: True if it can be sent to another supervisor.
        opens: the limits of the session that it starts.
        lane: the calls of a lane are served in order; lanes share the places.
        weight: the lane's weight.
        output: the output before the result.
        then: called when the supervisor has answered, also if the caller was cancelled.
        on_end: called synchronously with the call when it has an outcome: a future would need a loop
            iteration.
        index: the index of its request in a batch.
        ticket: its ticket in the fair queue, or 0.
        outcome: a result, a session, an exception or NOT_WANTED; None before.
        size_bytes: the approximate memory of the result.
    """

    encode: Callable[[int], list[bytes]]
    longest_s: float
    restartable: bool
    opens: Limits | None = None
    lane: int = 0
    weight: int = 1
    output: CallOutput = field(default_factory=CallOutput)
    then: Callable[[], None] | None = None
    on_end: Callable[["Call"], None] | None = None
    index: int = 0
    ticket: int = 0
    id: int = 0
    attempts: int = 0
    outcome: object = None
    size_bytes: int = 0

    def end(self, outcome: object) -> None:
        """Set the outcome of a call that has none."""
        self.outcome = outcome
        if self.on_end is not None:
            self.on_end(self)


class Line(Protocol):
    """The connection to the supervisor. `ready` returns True if one accepts frames, and restarts a dead
    one."""

    def ready(self) -> bool: ...

    def write(self, *pieces: bytes) -> None: ...


class Calls:
    """The calls that a pool has accepted.

    window: the number of calls that the supervisor holds. unclaimed: called with an outcome whose caller is
    gone.

    Invariant: every submitted call ends once, with a result, a SandboxError or its cancellation, and releases
    its place when neither the queue nor the supervisor holds it.
    """

    def __init__(self, line: Line, *, window: int, max_queued: int, unclaimed: Callable[[object], None]) -> None:
        self.window = window
        self.room = FifoLock(window + max_queued)
        self.sent: dict[int, Call] = {}
        self._line = line
        self._unclaimed = unclaimed
        self._waiting: FairQueue[Call] = FairQueue()
        self._next_id = 0
        self._closed = False

    def __len__(self) -> int:
        return self._waiting.size + len(self.sent)

    def longest_s(self) -> float | None:
        """Return the longest time limit of the supervisor's calls, or None if it has none."""
        return max((call.longest_s for call in self.sent.values()), default=None)

    # --- the caller's side -------------------------------------------------------------------------------

    async def perform(self, call: Call, deadline: float | None) -> Any:
        """Run a call and return its outcome. Raise SandboxError. Cancellation kills the program."""
        loop = asyncio.get_running_loop()
        if deadline is not None and deadline <= loop.time():
            raise deadline_error()  # the loop would handle a waiting answer before the timer
        ended = loop.create_future()
        call.on_end = partial(_wake, ended)
        taken = False
        try:
            if self.room.try_take():
                self._send_or_queue(call)
            else:
                await self.accept(call, deadline)
                self.send_more()
            if deadline is None:
                await ended
            else:  # a timer costs a quarter of an `asyncio.timeout`
                timer = loop.call_at(deadline, _expire, call)
                try:
                    await ended
                finally:
                    timer.cancel()
            outcome = call.outcome
            if isinstance(outcome, BaseException):
                raise outcome
            taken = True
            if call.output.has_parts and isinstance(outcome, ExecResult):
                async with asyncio.timeout_at(deadline):
                    outcome = await call.output.add_to(outcome)
            return outcome
        except TimeoutError:
            raise deadline_error() from None
        finally:
            if not taken:
                self.abandon(call)

    def accept_now(self, call: Call) -> None:
        """As `accept`, without waiting: the caller has checked that there is room."""
        self._check_open()
        if not self.room.try_take():
            raise RuntimeError("the pool has no room for a call")
        self._wait(call)

    async def accept(self, call: Call, deadline: float | None = None) -> None:
        """Wait for a place and queue the call for the next `send_more`. Raise TimeoutError at the
        deadline."""
        self._check_open()
        await self.room.take(deadline)
        if self._closed:  # meanwhile
            self.room.give()
        self._check_open()
        self._wait(call)

    def _wait(self, call: Call) -> None:
        call.ticket = self._waiting.put(call.lane, call, call.weight)

    def _send_or_queue(self, call: Call) -> None:
        """Send a call that has its place, or queue it if others wait."""
        if self._closed:
            self.room.give()
            self._check_open()
        waiting = self._waiting
        if waiting.size or len(self.sent) >= self.window or not self._line.ready():
            self._wait(call)
            self.send_more()
            return
        waiting.count_as_popped(call.lane, call.weight)
        if frames := self._frames_of(call):
            self._line.write(*frames)

    def abandon(self, call: Call) -> None:
        """Abandon a call whose caller no longer waits: a running program is killed and its place released
        after that. A queued call releases its place now, because its lane may wait for long."""
        if call.outcome is not None and not isinstance(call.outcome, BaseException):
            self._unclaimed(call.outcome)
        call.outcome = NOT_WANTED
        if call.id in self.sent:
            self._line.write(wire.encode_ids(wire.CANCEL, call.id))
        elif call.ticket:
            self._waiting.discard(call.lane, call.ticket)
            call.ticket = 0
            self.room.give()

    def when_answered(self, call: Call, then: Callable[[], None]) -> None:
        """Call `then` once the supervisor no longer has the call. A cell whose caller was cancelled keeps its
        interpreter until it has been interrupted."""
        if call.id in self.sent:
            call.then = then
        else:
            then()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox pool is closed", kind="closed", retryable=False)

    # --- the supervisor's side ---------------------------------------------------------------------------

    def send_more(self) -> None:
        """Send the calls that the window has room for, from the lanes with the fewest running calls. Yield to
        the loop after `SENT_BYTES`, because encoding long programs blocks it."""
        waiting = self._waiting
        if not waiting.size or not self._has_room() or not self._line.ready():
            return
        frames: list[bytes] = []
        size = 0
        while waiting.size and self._has_room():
            if size >= SENT_BYTES:
                asyncio.get_running_loop().call_soon(self.send_more)
                break
            call = waiting.pop()
            call.ticket = 0
            if call.outcome is not None:  # its deadline passed while it waited
                waiting.finish(call.lane)
                self.room.give()
            else:
                pieces = self._frames_of(call)
                frames += pieces
                size += sum(map(len, pieces))
        if frames:
            self._line.write(*frames)

    def _frames_of(self, call: Call) -> list[bytes]:
        """Assign an id and return the frames. A call that is too long to send ends, and has no frames."""
        self._next_id = call.id = self._next_id + 1
        call.attempts += 1
        try:
            frames = call.encode(call.id)
        except ValueError as error:
            self._waiting.finish(call.lane)
            self.room.give()
            call.end(error)
            return []
        self.sent[call.id] = call
        return frames

    def _has_room(self) -> bool:
        """Return True if the window has room. Idle lanes get up to `SPARE` more places, so that they do not
        wait for the long calls of others."""
        if len(self.sent) < self.window:
            return True
        return len(self.sent) < self.window + SPARE and self._waiting.idle_lanes > 0

    def deliver_output(self, call_id: int, stream: str, data: bytes) -> None:
        """Pass streamed output to the caller's function. Its exceptions become the call's outcome; otherwise
        they would end the connection to the supervisor, and with it all sessions."""
        call = self.sent[call_id]
        if call.outcome is not None:  # its caller no longer waits
            return
        try:
            call.output.add_text(stream, data)
        except Exception as error:  # the caller's function may raise anything
            stop = isinstance(error, StopIteration)  # a coroutine cannot raise it
            call.end(RuntimeError("on_output raised StopIteration") if stop else error)

    def settle(self, call_id: int, outcome: object) -> None:
        """End a call that the supervisor has answered. The caller then calls `send_more` once per read."""
        call = self.sent.pop(call_id)
        self._waiting.finish(call.lane)
        self._release(call)
        if call.outcome is None:
            call.end(outcome)
        else:
            self._unclaimed(outcome)

    def requeue_lost(self) -> None:
        """Requeue the calls of a dead supervisor before all others; fail those that cannot be restarted."""
        lost = [self.sent.pop(call_id) for call_id in sorted(self.sent)]
        for call in lost:
            self._waiting.finish(call.lane)
        for call in reversed(lost):
            if not call.restartable:
                message = "the sandbox supervisor died, and the session with it"
                self._fail(call, SessionLost(message, reason="supervisor_died"))
            elif call.attempts >= MAX_ATTEMPTS:
                message = f"the sandbox supervisor died {MAX_ATTEMPTS} times while it ran this call"
                self._fail(call, SandboxError(message, kind="supervisor_died", retryable=True))
            elif call.outcome is not None:
                self.room.give()
            else:
                call.output = CallOutput()  # its files will be sent again
                call.ticket = self._waiting.put_first(call.lane, call)

    def close(self) -> None:
        """Fail all calls and reject new ones."""
        self._closed = True
        self.fail_all(SandboxError("the sandbox pool is closed", kind="closed", retryable=False))

    def fail_all(self, why: SandboxError) -> None:
        calls = [*self.sent.values(), *self._waiting.clear()]
        self.sent.clear()
        for call in calls:
            self._fail(call, SandboxError(str(why), kind=why.kind, retryable=why.retryable))

    def _fail(self, call: Call, error: SandboxError) -> None:
        self._release(call)
        if call.outcome is None:
            call.end(error)

    def _release(self, call: Call) -> None:
        """Release the place of a call that neither the queue nor the supervisor holds."""
        call.ticket = 0
        self.room.give()
        if call.then is not None:
            call.then()


def _wake(ended: asyncio.Future[None], call: Call) -> None:
    if not ended.done():  # it is done if its caller was cancelled meanwhile
        ended.set_result(None)


def _expire(call: Call) -> None:
    if call.outcome is None:
        call.end(deadline_error())
