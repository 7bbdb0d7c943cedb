"""Plain functions of users, called off the event loop.

A thread cannot be killed. One that hangs keeps its place until the process ends, so the places are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

MAX_CALLS = 32
"""The maximum number of concurrent calls of one `Threads`; more wait."""


class Threads:
    """Calls functions in threads of that name."""

    def __init__(self, name: str) -> None:
        self._name, self._slots = name, asyncio.Semaphore(MAX_CALLS)

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the function's value, or raise its exception, SystemExit too."""
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

        def end(value: object, error: BaseException | None) -> None:
            self._slots.release()
            if not ended.done():
                ended.set_result((value, error))

        def work() -> None:
            value, error = None, None
            try:
                value = function(*args, **kwargs)
            except BaseException as raised:  # passed to the waiter, which knows the allowed exceptions
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no waiter
                loop.call_soon_threadsafe(end, value, error)

        try:
            threading.Thread(target=work, name=self._name, daemon=True).start()
        except RuntimeError:
            self._slots.release()
            raise
        value, error = await ended
        if error is not None:
            raise error
        return value
