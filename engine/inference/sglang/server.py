"""An inference server as a supervised child: its process tree ends with this process.

    async with ServerProcess(command, log_path=RUN/logs/sglang-0.log) as server:
        await server.wait_ready(probe, deadline_s=600)
        code = await server.wait()      # until it dies

`wait_ready` waits until the probe succeeds, the process ends, or the deadline passes. The guard between this
process and the server (guard.py) ends the server's tree when its stdin closes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from rocstar.engine.inference import guard
from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.guard import descendants, signal_all

PROBE_EVERY_S = 0.25
PROGRESS_EVERY_S = 15.0
TAIL_BYTES = 4096
STOP_S = 15.0
"""The time the guard has to end the tree; past it the guard and the tree are killed."""


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


Launcher = Callable[..., "ServerProcess"]
"""Makes the server of a replica from the arguments of `ServerProcess`."""


class ServerProcess:
    """One start of one command. Invariant: after `stop`, no process of its tree is alive.

    Output goes to `log_path`, appended. `env` is added to our own environment; a value None removes a name.
    """

    def __init__(self, command: Sequence[str], *, log_path: Path, env: Mapping[str, str | None] | None = None) -> None:
        self.command, self.log_path = tuple(command), log_path
        self._env = {**os.environ, **{k: v for k, v in (env or {}).items() if v is not None}}
        for name in (k for k, v in (env or {}).items() if v is None):
            self._env.pop(name, None)
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> ServerProcess:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        assert self._process is None, "a ServerProcess is started once"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", guard.__file__, "--", *self.command]
        with self.log_path.open("ab") as log:
            log.write(f"\n--- {' '.join(self.command)}\n".encode())
            log.flush()
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, env=self._env, start_new_session=True
            )

    @property
    def pid(self) -> int | None:
        """The pid of the guard, the root of the server's tree; None before the start."""
        return None if self._process is None else self._process.pid

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.returncode

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def wait_ready(
        self,
        probe: Callable[[], Awaitable[bool]],
        *,
        deadline_s: float,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Return when `probe` succeeds. Raise InferenceError (server_died, server_not_ready) with the log's
        tail.

        `progress` is called every 15 s with the elapsed time and the last line of the server.
        """
        loop = asyncio.get_running_loop()
        started = reported = loop.time()
        while not await probe():
            waited = loop.time() - started
            if self.returncode is not None:
                detail = f"{self.command[0]} ended with {self.returncode} before it was ready\n{self.tail()}"
                raise InferenceError("server_died", detail, retryable=False)
            if waited > deadline_s:
                detail = f"not ready within {deadline_s} s; {self.log_path} ends with\n{self.tail()}"
                raise InferenceError("server_not_ready", detail, retryable=False)
            if loop.time() - reported >= PROGRESS_EVERY_S:
                reported = loop.time()
                last = (self.tail().splitlines() or [""])[-1]
                progress(f"waiting for the inference server, {waited:.0f} s: {last}")
            await asyncio.sleep(PROBE_EVERY_S)

    def tail(self) -> str:
        """The last lines of the log."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    async def stop(self) -> None:
        """End the tree: SIGTERM, then SIGKILL. Returns when nothing of it is left."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:  # the guard itself hangs
            below = descendants(self._process.pid)
            self._process.kill()
            signal_all(below, signal.SIGKILL)
            await self._process.wait()
