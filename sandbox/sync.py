"""The blocking `run`: one program, from synchronous code.

    caller's thread -- run() --> thread "rocstar-sandbox" with a loop of its own --> a SandboxPool per flavour
          <---------------------- ExecResult, or SandboxError -----------------------

The thread and each pool start with the first call that needs them and end with the process. A forked process
starts new ones on its first call.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import TypeVar

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.child.import_scan import select_flavour
from rocstar.sandbox.extras import installed_flavours
from rocstar.sandbox.pool.pool import AUTO, SandboxPool
from rocstar.sandbox.types import DEFAULT_LIMITS, ExecRequest, ExecResult, Limits, SandboxError

T = TypeVar("T")

CLOSE_S = 30.0
"""The time limit for closing the pools at exit."""


def run(
    code: str,
    *,
    stdin: str = "",
    flavour: str = AUTO,
    limits: Limits = DEFAULT_LIMITS,
    seed: int | None = None,
    files: Mapping[str, bytes] | None = None,
    fetch: Sequence[str] = (),
    displays: bool = False,
) -> ExecResult:
    """Run one program and wait for its end: for scripts, consoles and notebooks, from any thread.

    The first call with a flavour takes as long as its imports. To run many programs at a time, use a
    SandboxPool. Raises SandboxError if the sandbox fails, TypeError and ValueError for invalid arguments.
    Ctrl-C kills the program.
    """
    request = ExecRequest(
        code=code,
        stdin=stdin,
        flavour=flavour,
        limits=limits,
        seed=seed,
        files={} if files is None else files,
        fetch=fetch if isinstance(fetch, str) else tuple(fetch),  # a str is rejected, not split
        displays=displays,
    )
    return _background().wait(request)


def flavour_of(request: ExecRequest) -> str:
    """Return the flavour that a pool for this request needs."""
    if request.flavour != AUTO:
        return request.flavour
    return select_flavour(request.code, installed_flavours())


class _Background:
    """The thread, its loop and its pools. Invariant: only that thread uses the pools."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pools: dict[str, SandboxPool] = {}
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._thread = threading.Thread(target=self._serve, name="rocstar-sandbox", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def wait(self, request: ExecRequest) -> ExecResult:
        if threading.current_thread() is self._thread:
            raise RuntimeError("run() was called in its own thread and would deadlock")
        call = self._send(self._run(request))
        try:
            return call.result()
        except BaseException:
            call.cancel()  # Ctrl-C: the program is killed
            raise

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._send(self._stack.aclose()).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    def _send(self, work: Coroutine[None, None, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _run(self, request: ExecRequest) -> ExecResult:
        flavour = flavour_of(request)
        if flavour not in FLAVOURS:
            message = f"unknown flavour {flavour!r}. Choose from {', '.join(FLAVOURS)}, {AUTO}."
            raise SandboxError(message, kind="unknown_flavour", retryable=False)
        async with self._opening:
            if flavour not in self._pools:
                self._pools[flavour] = await self._stack.enter_async_context(SandboxPool((flavour,)))
        return await self._pools[flavour].run(request)


_lock = threading.Lock()
_current: _Background | None = None


def _background() -> _Background:
    global _current
    with _lock:
        if _current is None:
            _current = _Background()
        return _current


def close_pools() -> None:
    """Close the pools of `run`; a later call starts new ones. Called at exit."""
    global _current
    with _lock:
        ended, _current = _current, None
    if ended is not None:
        ended.close()


def _forget() -> None:
    """Reset the state in a forked process, which has no thread and does not own the pools."""
    global _current, _lock
    _current, _lock = None, threading.Lock()


atexit.register(close_pools)
os.register_at_fork(after_in_child=_forget)
