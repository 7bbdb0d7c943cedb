"""Keeps one supervisor alive.

start --> Supervisor -- frames --> on_frame
             |  its end: it died, or hung and was killed
             v
  on_end --> another is started, MAX_STARTS times at most --> work.send_more, or work.fail_all
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from rocstar.sandbox.pool.process import Supervisor, SupervisorOptions
from rocstar.sandbox.types import SandboxError

MAX_STARTS = 4


class RestartListener(Protocol):
    """What a supervisor is kept alive for."""

    def send_more(self) -> None:
        """Another supervisor takes frames, or this one has answered."""

    def fail_all(self, why: SandboxError) -> None:
        """None could be started. The next `SupervisorRestarter.ready` tries again."""

    def longest_s(self) -> float | None:
        """How long a call with the supervisor may take, in seconds; None when it has none."""


class SupervisorRestarter:
    """Owns the supervisor. Invariant: at most one lives, and after `close` none."""

    def __init__(
        self,
        options: SupervisorOptions,
        *,
        on_frame: Callable[[tuple[Any, ...]], None],
        on_end: Callable[[], None],
    ) -> None:
        """
        Args:
            options: How a supervisor is started.
            on_frame: Told of every frame that says something of calls, sessions or zygotes.
            on_end: Told that the supervisor is gone, and its calls with it, before another is started.
        """
        self.options = options
        self.restarts = 0
        self._on_frame = on_frame
        self._on_end = on_end
        self._work: RestartListener
        self._supervisor: Supervisor | None = None
        self._restart: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self, work: RestartListener) -> None:
        """Raises SandboxError; nothing is left then."""
        self._work = work
        supervisor = self._new(self.options)
        await supervisor.start()
        self._supervisor = supervisor

    async def close(self) -> None:
        self._closed = True
        if self._restart is not None:
            self._restart.cancel()
            with suppress(asyncio.CancelledError):
                await self._restart
        if self._supervisor is not None:
            await asyncio.shield(self._supervisor.close())

    @property
    def _living(self) -> Supervisor | None:
        return self._supervisor if self._supervisor is not None and self._supervisor.alive else None

    @property
    def pid(self) -> int:
        """0 while the supervisor is being replaced."""
        return 0 if self._living is None else self._living.pid

    @property
    def facts(self) -> dict[str, Any]:
        return self._supervisor.facts if self._supervisor is not None else {}

    def ready(self) -> bool:
        """Whether a supervisor takes frames now. One that is dead is replaced."""
        if self._supervisor is not None and self._supervisor.alive:
            return True
        self._restart_if_dead()
        return False

    def write(self, *pieces: bytes) -> None:
        """Nothing is sent to a dead one, which has no calls any more."""
        if self._supervisor is not None and self._supervisor.alive:
            self._supervisor.write(*pieces)

    def _new(self, options: SupervisorOptions) -> Supervisor:
        return Supervisor(
            options,
            on_frame=self._on_frame,
            on_read=self._work.send_more,
            on_end=self._ended,
            longest_s=self._work.longest_s,
        )

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
                supervisor = self._new(replace(self.options, warm_before=True))
                try:
                    await supervisor.start()
                except (SandboxError, OSError) as error:
                    failure = _start_failure(error)
                    if failure.retryable and attempt + 1 < MAX_STARTS:
                        continue
                    self._work.fail_all(failure)
                    return
                self._supervisor = supervisor
                if supervisor.alive:
                    self._work.send_more()
                    return
            message = "the sandbox supervisor died each time it was started"
            self._work.fail_all(SandboxError(message, kind="supervisor_died", retryable=True))
        finally:
            self._restart = None


def _start_failure(error: SandboxError | OSError) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    return SandboxError(f"cannot start the sandbox supervisor: {error}", kind="zygote_start", retryable=True)
