"""The calls of a pool: accepted, sent, settled.

    submit -> room (max_queued) -> lanes -> window -> supervisor
                                                ^           |
         told, its caller <-- settle <----------+-----------+

A caller waits first for room (that is the back-pressure), then until it is told. The window is what the
supervisor holds at a time: enough that a finished child is followed by the next without asking a busy event
loop, few enough that little is lost with it. Calls that were lost with a supervisor are sent again, for
programs have no effect outside; calls of sessions are not, for their state is gone.
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
from rocstar.sandbox.types import ExecResult, Limits, SandboxError, SessionLost

MAX_ATTEMPTS = 4
"""A call that was lost so often with its supervisor is given up."""


SPARE = 64
"""Places in the window for lanes that have nothing there."""

SENT_BYTES = 1 << 20
"""Of programs, after which others have a turn before more are sent."""

NOT_WANTED: Final = object()
"""The outcome of a call for which nobody waits any more."""


@dataclass(slots=True, eq=False)
class Call:
    """A call of the supervisor until it is answered. Invariant: it gets one outcome, of which `told` is told
    once, unless nobody waits any more.

    Args:
        encode: the pieces of the frame, given the call's id.
        longest_s: how long it may take once it runs.
        restartable: it can be sent to another supervisor.
        opens: the limits of the session that it starts.
        lane: calls of one wait for each other, those of different ones share the places.
        weight: of the lane, against others.
        taken: what comes before the result.
        then: called once the supervisor has answered, which a caller that was cancelled does not wait for.
        told: called with it when it has an outcome: at once, for a future's callbacks take the loop's turn.
        place: of its request among those of a batch.
        ticket: while it waits for its turn, where; 0 when it does not.
        outcome: what came of it: a result, a session, or an exception; NOT_WANTED; None before.
        size_bytes: what a result holds of memory, for the most part.
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
        """It has none yet."""
        self.outcome = outcome
        if self.on_end is not None:
            self.on_end(self)


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
        self.room = FifoLock(window + max_queued)
        self.sent: dict[int, Call] = {}
        self._line = line
        self._unclaimed = unclaimed
        self._waiting: FairQueue[Call] = FairQueue()
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
        loop = asyncio.get_running_loop()
        if deadline is not None and deadline <= loop.time():
            raise late()  # a timer would come behind an answer that is there when the loop looks
        ended = loop.create_future()
        call.on_end = partial(_wake, ended)
        taken = False
        try:
            if self.room.try_take():  # nothing is waited for
                self._placed(call)
            else:
                async with asyncio.timeout_at(deadline):
                    await self.submit(call)
            if deadline is None:
                await ended
            else:  # a bare timer, which takes a quarter of the time of an `asyncio.timeout`
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
            raise late() from None
        finally:
            if not taken:
                self.abandon(call)

    async def submit(self, call: Call) -> None:
        """Returns when the call has a place, and is sent as soon as the window has one."""
        await self.accept(call)
        self.send_more()

    def accept_now(self, call: Call) -> None:
        """As `accept`, while there is room."""
        self._check_open()
        if not self.room.try_take():
            raise RuntimeError("there is no room for a call")
        self._wait(call)

    async def accept(self, call: Call, deadline: float | None = None) -> None:
        """Returns when the call has a place. It waits for the next `send_more`. Raises TimeoutError."""
        self._check_open()
        await self.room.take(deadline)
        if self._closed:  # meanwhile
            self.room.give()
        self._check_open()
        self._wait(call)

    def _wait(self, call: Call) -> None:
        call.ticket = self._waiting.put(call.lane, call, call.weight)

    def _placed(self, call: Call) -> None:
        """`submit`, once the call has its place."""
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
        """Nobody waits for it any more: what is under way is killed, and its place given back after that. One
        that waits for its turn gives its place back now: its lane may have none for an hour."""
        if call.outcome is not None and not isinstance(call.outcome, BaseException):
            self._unclaimed(call.outcome)
        call.outcome = NOT_WANTED
        if call.id in self.sent:
            self._line.write(wire.encode_id(wire.CANCEL, call.id))
        elif call.ticket:
            self._waiting.discard(call.lane, call.ticket)
            call.ticket = 0
            self.room.give()

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
            if call.outcome is not None:  # too late, which its caller has yet to hear
                waiting.finish(call.lane)
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
            self._waiting.finish(call.lane)
            self.room.give()
            call.end(error)
            return []
        self.sent[call.id] = call
        return frames

    def _has_room(self) -> bool:
        """One of a lane that has nothing with the supervisor does not wait behind the window: that is for
        those that have, and a call of theirs may take its time."""
        if len(self.sent) < self.window:
            return True
        return len(self.sent) < self.window + SPARE and self._waiting.next_is_idle()

    def deliver_output(self, call_id: int, stream: str, data: bytes) -> None:
        """Output of a call that is followed. What its caller's function raises is that caller's outcome: to
        the supervisor's connection it would be the end, and that of everybody's sessions."""
        call = self.sent[call_id]
        if call.outcome is not None:  # nobody listens
            return
        try:
            call.output.add_text(stream, data)
        except Exception as error:  # whatever somebody's own function may raise
            stop = isinstance(error, StopIteration)  # which no coroutine raises
            call.end(RuntimeError("on_output raised StopIteration") if stop else error)

    def settle(self, call_id: int, outcome: object) -> None:
        """The supervisor has answered. `send_more` follows once all answers that came with this one are."""
        call = self.sent.pop(call_id)
        self._waiting.finish(call.lane)
        self._release(call)
        if call.outcome is None:
            call.end(outcome)
        else:
            self._unclaimed(outcome)

    def requeue_lost(self) -> None:
        """The supervisor died: what can be sent again waits in front of all others."""
        lost = [self.sent.pop(call_id) for call_id in sorted(self.sent)]
        for call in lost:
            self._waiting.finish(call.lane)
        for call in reversed(lost):
            if not call.restartable:
                message = "the sandbox supervisor died, and the session with it"
                self._fail(call, SessionLost(message, reason="supervisor_died"))
            elif call.attempts >= MAX_ATTEMPTS:
                message = f"the sandbox supervisor died {MAX_ATTEMPTS} times under this call"
                self._fail(call, SandboxError(message, kind="supervisor_died", retryable=True))
            elif call.outcome is not None:
                self.room.give()
            else:
                call.output = CallOutput()  # what came of its files comes again
                call.ticket = self._waiting.put_first(call.lane, call)

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
        self._release(call)
        if call.outcome is None:
            call.end(error)

    def _release(self, call: Call) -> None:
        """Neither the queue nor the supervisor holds it any more."""
        call.ticket = 0
        self.room.give()
        if call.then is not None:
            call.then()


def _wake(ended: asyncio.Future[None], call: Call) -> None:
    if not ended.done():  # else its caller was cancelled in the same moment
        ended.set_result(None)


def _expire(call: Call) -> None:
    if call.outcome is None:
        call.end(late())


def late() -> SandboxError:
    return SandboxError("the deadline passed before the program ended", kind="deadline", retryable=True)
