"""The shutdown of a server: signals, and waiting for active requests."""

import asyncio
import signal
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class StopSignals:
    """Set `stop` at the first SIGTERM or SIGINT, and `hurry` at the second. `status`: the exit status."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0

    def _receive(self, status: int) -> None:
        if self.stop.is_set():
            self.hurry.set()
        else:
            self.status = status
            self.stop.set()

    @contextmanager
    def installed(self) -> Iterator["StopSignals"]:
        """Handle the signals in the block."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._receive, 0)
        loop.add_signal_handler(signal.SIGINT, self._receive, 128 + signal.SIGINT)
        try:
            yield self
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


async def wait_until(done: Awaitable[Any], hurry: asyncio.Event, timeout_s: float | None = None) -> None:
    """Return when `done` has completed, `hurry` is set, or the timeout has passed; cancel `done` then."""
    waits = [asyncio.ensure_future(done), asyncio.ensure_future(hurry.wait())]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
