"""A batch whose calls are opened a limited number ahead of the reader of their outcomes.

    requests --open--> calls, some thousand at most --settled--> outcomes, as they are read

A batch may have 65,536 requests. If all of them were open at once, the garbage collector would visit each for
every caller, and freeing them would block the loop for 0.2 s.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rocstar.sandbox.fabric.wire import Outcome, request_weight, weight
from rocstar.sandbox.types import ExecRequest, SandboxError

AHEAD_CALLS = 1024
"""More than Redis holds for a few workers; for many, pass a larger `ahead`."""

OPENED_AT_ONCE = 256
"""Calls that are opened before control returns to the event loop: these take milliseconds."""

MAX_HELD = 64 << 20
"""Characters of open calls and unread outcomes, approximately, above which a batch opens no more calls."""

NO_CALL = 0

OpenCall = Callable[[ExecRequest, Callable[[Outcome], None]], int]
"""Opens a call and returns its id. Raises SandboxError."""


class PrefetchedBatch:
    """The open calls and unread outcomes of one batch.

    waiting: call ids of open or unread requests, by request index. outcomes: unread outcomes.

    Invariant: every request has at most one outcome; at most `ahead` requests are open or unread.
    """

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
        """Open calls up to the limits."""
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
        """Wait for outcomes."""
        self._came.clear()
        await self._came.wait()

    def read(self) -> tuple[int, Outcome, bool]:
        """Return the next outcome as (request index, outcome, True if a call was opened for it)."""
        index, outcome = self.outcomes.popleft()
        self._held -= weight(outcome)
        return index, outcome, self.waiting.pop(index) != NO_CALL

    def left(self) -> list[int]:
        """Return the indices of the requests whose outcome was not read, in order."""
        return [*sorted(self.waiting), *range(self._next, self._number)]

    def calls(self) -> list[int]:
        """Return the ids of the open calls."""
        return [call_id for call_id in self.waiting.values() if call_id != NO_CALL]
