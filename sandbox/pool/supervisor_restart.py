"""Restarts a supervisor that has died.

start --> Supervisor -- frames --> on_frame
             |  it died, or hung and was killed
             v
  on_end --> starts another, at most MAX_STARTS attempts --> Calls.send_more, or Calls.fail_all
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from rocstar.sandbox.pool.calls import Calls
from rocstar.sandbox.pool.process import Supervisor, SupervisorOptions
from rocstar.sandbox.types import SandboxError

MAX_STARTS = 4


@dataclass(eq=False)
class SupervisorRestarter:
    """Owns the supervisor. Invariant: at most one is alive, and none after `close`."""

    options: SupervisorOptions
    _: KW_ONLY
    on_frame: Callable[[tuple[Any, ...]], None]
    on_end: Callable[[], None]
    restarts: int = 0
    _listener: Calls = field(init=False)
    _supervisor: Supervisor | None = None
    _restart: asyncio.Task[None] | None = None
    _closed: bool = False

    async def start(self, listener: Calls) -> None:
        """Start the supervisor. Raise SandboxError if it cannot start; no process is left then."""
        self._listener = listener
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
        """The supervisor's pid, or 0 during a restart."""
        return 0 if self._living is None else self._living.pid

    @property
    def facts(self) -> dict[str, Any]:
        return self._supervisor.facts if self._supervisor is not None else {}

    def ready(self) -> bool:
        """Return True if the supervisor accepts frames; restart a dead one."""
        if self._living is None:
            self._restart_if_dead()
        return self._living is not None

    def write(self, *pieces: bytes) -> None:
        """Send frames, unless the supervisor is dead: its calls are requeued or failed."""
        if (living := self._living) is not None:
            living.write(*pieces)

    def _new(self, options: SupervisorOptions) -> Supervisor:
        return Supervisor(
            options,
            on_frame=self.on_frame,
            on_read=self._listener.send_more,
            on_end=self._ended,
            longest_s=self._listener.longest_s,
        )

    # --- its death ---------------------------------------------------------------------------------------

    def _ended(self) -> None:
        self.on_end()
        self._restart_if_dead()

    def _restart_if_dead(self) -> None:
        dead = self._supervisor is not None and not self._supervisor.alive
        if dead and not self._closed and self._restart is None:
            self.restarts += 1
            self._restart = asyncio.get_running_loop().create_task(self._start_again())

    async def _start_again(self) -> None:
        """Replace the dead supervisor when another is ready; until then a later call tries again."""
        assert self._supervisor is not None
        try:
            await self._supervisor.close()
            for attempt in range(MAX_STARTS):
                supervisor = self._new(replace(self.options, warm_before=True))
                try:
                    await supervisor.start()
                except (SandboxError, OSError) as error:
                    failure = error
                    if not isinstance(failure, SandboxError):
                        message = f"cannot start the sandbox supervisor: {error}"
                        failure = SandboxError(message, kind="zygote_start", retryable=True)
                    if failure.retryable and attempt + 1 < MAX_STARTS:
                        continue
                    self._listener.fail_all(failure)
                    return
                self._supervisor = supervisor
                if supervisor.alive:
                    self._listener.send_more()
                    return
            message = f"the sandbox supervisor died in {MAX_STARTS} starts"
            self._listener.fail_all(SandboxError(message, kind="supervisor_died", retryable=True))
        finally:
            self._restart = None
