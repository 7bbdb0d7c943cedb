"""A loop on its own time, for tests in which all that happens happens within the loop.

Time is what the loop waits, up to what it meant to wait, and a fixed bit for each of its turns. What a
callback costs and how long the machine lets the process lie do not count: on a machine that is ten times
slower, all deadlines of a test come after the same work, and only the test takes longer.

VirtualClockLoop of tests.fakes does not wait at all: beside real sockets its clock would jump while the
kernel still carries a message. Threads would bring the machine's time back: what is meant for one is done at
once.
"""

import asyncio
import functools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any

TURN_S = 0.0002
"""About what a turn of these tests takes on a quiet machine."""


class _Selector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        events = super().select(timeout)
        self.now += TURN_S
        if timeout is not None and timeout > 0:
            self.now += min(time.monotonic() - began, timeout)
        return events


class OwnTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # whatever the thread would have raised is its caller's
            done.set_exception(error)
        return done


def on_own_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The coroutine function as a test that runs in such a loop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=OwnTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
