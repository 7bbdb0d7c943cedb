"""Notices a supervisor that hangs.

    every TICK_S, while it has calls: PING -> supervisor -> PONG, or any other frame

Time is counted in ticks of this event loop, not by a clock: a loop that stood still itself, with answers
waiting to be read, blames nobody.
"""

import asyncio
from collections.abc import Callable

TICK_S = 20.0

SILENT_S = 120.0
"""A supervisor that says nothing for so long, though it is asked, hangs. Its one thread waits for nothing but
the disk that scratch directories are on, and that can take half a minute on an overloaded machine."""

STUCK_S = 60.0
"""One that only answers PING, and no call for so long beyond what the longest may take, has lost them."""


class Watchdog:
    """longest_s: how long a call with the supervisor may take; None when it has none. ask: sends a PING.
    bite: called when the supervisor hangs. It runs from the first `watch` until there are no calls."""

    def __init__(
        self, longest_s: Callable[[], float | None], ask: Callable[[], None], bite: Callable[[], None]
    ) -> None:
        self._longest_s = longest_s
        self._ask = ask
        self._bite = bite
        self._timer: asyncio.TimerHandle | None = None
        self._silent_s = self._stuck_s = 0.0

    def watch(self) -> None:
        """A call may be with the supervisor from now on."""
        if self._timer is None:
            self._start_anew()
            self._wind()

    def heard(self, *, pong: bool) -> None:
        self._silent_s = 0.0
        if not pong:
            self._stuck_s = 0.0

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_anew(self) -> None:
        self._silent_s = self._stuck_s = 0.0

    def _wind(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        longest_s = self._longest_s()
        if longest_s is None:
            return
        self._silent_s += TICK_S
        self._stuck_s += TICK_S
        if self._silent_s > SILENT_S or self._stuck_s > STUCK_S + longest_s:
            self._start_anew()
            self._bite()
        else:
            self._ask()
        self._wind()
