"""A batch's calls, opened a little ahead of whoever reads their outcomes.

    requests --open--> calls, some thousand at most --settled--> outcomes, as they are read

A batch may have 65,536 requests. Were all of them calls at once, the collector would go through each for
everybody, and to let go of them would take a fifth of a second of the loop's time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rocstar.sandbox.fabric.wire import Outcome, request_weight, weight
from rocstar.sandbox.types import ExecRequest, SandboxError

AHEAD_CALLS = 1024
"""More than Redis has for a few workers; see `ahead` for many."""

OPENED_AT_ONCE = 256
"""Calls, after which others have a turn: opening so many takes milliseconds."""

MAX_HELD = 64 << 20
"""A batch opens no more while its calls and what they gave have so many characters, about."""

NO_CALL = 0

OpenCall = Callable[[ExecRequest, Callable[[Outcome], None]], int]
"""Opens a call and returns its id. Raises SandboxError."""


class AheadBatch:
    """Invariants: every request has at most one outcome; at most `ahead` of them are open or have an outcome
    that nobody has read. `waiting`: those, their call's id by their index. `outcomes`: theirs, to be read."""

    def __init__(self, requests: Sequence[ExecRequest], open_call: OpenCall, *, ahead: int) -> None:
        self.waiting: dict[int, int] = {}
        self.outcomes: deque[tuple[int, Outcome]] = deque()
        self._number = len(requests)
        self._requests: Iterator[ExecRequest] = iter(requests)
        self._open_call = open_call
        self._ahead = ahead
        self._next = 0
        self._held = 0
        self._came = asyncio.Event()

    async def open_more(self) -> None:
        """As many as may be open."""
        opened = 0
        while self._next < self._number and self._has_room():
            index, request = self._next, next(self._requests)
            self._next += 1
            size = request_weight(request)
            self._held += size
            self.waiting[index] = NO_CALL
            try:
                self.waiting[index] = self._open_call(request, partial(self._settle, index, size))
            except SandboxError as error:
                self._settle(index, size, error)
            opened += 1
            if opened % OPENED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _has_room(self) -> bool:
        return not self.waiting or (len(self.waiting) < self._ahead and self._held < MAX_HELD)

    def _settle(self, index: int, size: int, outcome: Outcome) -> None:
        self._held += weight(outcome) - size
        self.outcomes.append((index, outcome))
        self._came.set()

    async def wait(self) -> None:
        """Returns when there are outcomes."""
        self._came.clear()
        await self._came.wait()

    def read(self) -> tuple[int, Outcome, bool]:
        """The next outcome, by the request's index, and whether there was a call."""
        index, outcome = self.outcomes.popleft()
        self._held -= weight(outcome)
        return index, outcome, self.waiting.pop(index) != NO_CALL

    def left(self) -> list[int]:
        """The requests without an outcome that was read, in order."""
        return [*sorted(self.waiting), *range(self._next, self._number)]

    def calls(self) -> list[int]:
        """Ids of their calls."""
        return [call_id for call_id in self.waiting.values() if call_id != NO_CALL]
