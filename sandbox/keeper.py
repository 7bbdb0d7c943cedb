"""Keeps one supervisor alive.

start --> Supervisor -- frames --> on_frame
             |  its end: died, or the watchdog killed it
             v
  on_end --> another is started, MAX_STARTS times at most --> on_start, or on_failure
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rocstar.sandbox import wire
from rocstar.sandbox.process import Supervisor, SupervisorOptions
from rocstar.sandbox.types import SandboxError
from rocstar.sandbox.watchdog import Watchdog

MAX_STARTS = 4


class Keeper:
    """on_frame: told of every frame but PONG. on_end: the supervisor is gone, and its calls with it.
    on_start: another one takes frames. on_failure: none could be started; `ready` tries again. longest_s: see
    Watchdog.

    Invariant: at most one supervisor lives, and after `close` none.
    """

    def __init__(
        self,
        options: SupervisorOptions,
        *,
        on_frame: Callable[[tuple[Any, ...]], None],
        on_end: Callable[[], None],
        on_start: Callable[[], None],
        on_failure: Callable[[SandboxError], None],
        longest_s: Callable[[], float | None],
    ) -> None:
        self.options = options
        self.restarts = 0
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_start = on_start
        self._on_failure = on_failure
        self._supervisor: Supervisor | None = None
        self._restart: asyncio.Task[None] | None = None
        self._watchdog = Watchdog(longest_s, self._ask, self._kill)
        self._closed = False

    async def start(self) -> None:
        """Raises SandboxError; nothing is left then."""
        supervisor = self._new()
        await supervisor.start()
        self._supervisor = supervisor

    async def close(self) -> None:
        self._closed = True
        self._watchdog.stop()
        if self._restart is not None:
            self._restart.cancel()
            with suppress(asyncio.CancelledError):
                await self._restart
        if self._supervisor is not None:
            await asyncio.shield(self._supervisor.close())

    @property
    def alive(self) -> bool:
        return self._supervisor is not None and self._supervisor.alive

    @property
    def pid(self) -> int:
        """0 while the supervisor is being replaced."""
        return self._supervisor.pid if self._supervisor is not None and self._supervisor.alive else 0

    @property
    def facts(self) -> dict[str, Any]:
        return self._supervisor.facts if self._supervisor is not None else {}

    def ready(self) -> bool:
        """Whether a supervisor takes frames now. One that is dead is replaced."""
        self._restart_if_dead()
        return self.alive

    def write(self, data: bytes) -> None:
        """Nothing is sent to a dead one, which has no calls any more."""
        if self._supervisor is not None and self._supervisor.alive:
            self._supervisor.write(data)
            self._watchdog.watch()

    def _new(self) -> Supervisor:
        return Supervisor(self.options, self._take_frame, self._ended)

    def _take_frame(self, frame: tuple[Any, ...]) -> None:
        self._watchdog.heard(pong=frame[0] == wire.PONG)
        if frame[0] != wire.PONG:
            self._on_frame(frame)

    def _ask(self) -> None:
        if self._supervisor is not None and self._supervisor.alive:
            self._supervisor.write(wire.encode_id(wire.PING, 0))

    def _kill(self) -> None:
        if self._supervisor is not None and self._supervisor.alive:
            self._supervisor.kill()

    # --- its death ---------------------------------------------------------------------------------------

    def _ended(self) -> None:
        self._on_end()
        self._restart_if_dead()

    def _restart_if_dead(self) -> None:
        dead = self._supervisor is not None and not self._supervisor.alive
        if dead and not self._closed and self._restart is None:
            self.restarts += 1
            self._restart = asyncio.get_running_loop().create_task(self._start_again())

    async def _start_again(self) -> None:
        """The dead one stays in its place until another is ready: a later call then tries again."""
        assert self._supervisor is not None
        try:
            await self._supervisor.close()
            for attempt in range(MAX_STARTS):
                supervisor = self._new()
                try:
                    await supervisor.start()
                except (SandboxError, OSError) as error:
                    failure = _start_failure(error)
                    if failure.retryable and attempt + 1 < MAX_STARTS:
                        continue
                    self._on_failure(failure)
                    return
                self._supervisor = supervisor
                if supervisor.alive:
                    self._on_start()
                    return
            message = "the sandbox supervisor died each time it was started"
            self._on_failure(SandboxError(message, kind="supervisor_died", retryable=True))
        finally:
            self._restart = None


def _start_failure(error: SandboxError | OSError) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    return SandboxError(f"cannot start the sandbox supervisor: {error}", kind="zygote_start", retryable=True)
