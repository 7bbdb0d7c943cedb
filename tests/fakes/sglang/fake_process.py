"""A launcher whose servers are objects of this process: they start at once, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.inference.base import InferenceError
from rocstar.train.serving.sglang import SGLang
from tests.fakes.sglang.fake_server import FakeServer


class InProcess:
    """Give it to a Replica as its launcher. `options` are of FakeServer.

    Args:
        on_start: what to do to each server first: its faults.
    """

    def __init__(self, on_start: Callable[[FakeServer], None] | None = None, **options: Any) -> None:
        self.on_start, self.options = on_start, options
        self.running: list[Process] = []
        self.started: list[list[str]] = []
        """The command of every start."""
        self.latest: dict[str, FakeServer] = {}
        """By the name of its log, the server that was started last."""

    def __call__(
        self, command: Sequence[str], *, log_path: Path, env: Mapping[str, str | None] | None = None
    ) -> Process:
        return Process(self, list(command), log_path)


class Process:
    """Stands for a ServerProcess. It reads the model and the port out of the command."""

    def __init__(self, launcher: InProcess, command: list[str], log_path: Path) -> None:
        self.launcher, self.command, self.log_path = launcher, command, log_path
        self.pid: int | None = None
        self._killed: asyncio.Event | None = None
        model, port = Path(self.argument("--model-path")), int(self.argument("--port"))
        self.server = FakeServer(model, port=port, **launcher.options)

    def argument(self, name: str) -> str:
        return self.command[self.command.index(name) + 1]

    @property
    def returncode(self) -> int | None:
        is_over = self._killed.is_set() if self._killed is not None else self.server.dead.is_set()
        return -9 if is_over else None

    async def start(self) -> None:
        self.pid = 0
        self.launcher.started.append(self.command)
        if self.launcher.on_start is not None:
            self.launcher.on_start(self.server)
        await self.server.__aenter__()
        self.launcher.running.append(self)
        self.launcher.latest[self.log_path.stem] = self.server

    async def wait_ready(self, probe: Callable[..., Awaitable[bool]], *, deadline_s: float, progress: Any) -> None:
        end = asyncio.get_running_loop().time() + deadline_s
        while not await probe():
            if self.server.dead.is_set() or asyncio.get_running_loop().time() >= end:
                raise InferenceError("server_died", "it died or did not become ready", retryable=False)

    async def wait(self) -> int:
        await self.server.dead.wait()
        if self._killed is not None:
            await self._killed.wait()
        return -9

    async def kill(self) -> None:
        """As by SIGKILL. Nobody learns of it before it is done: a turn that is cut off may be who kills."""
        self._killed = asyncio.Event()
        await self.server.kill()
        self._killed.set()

    async def stop(self) -> None:
        if self in self.launcher.running:
            self.launcher.running.remove(self)
        await self.server.kill()


class InProcessSGLang(SGLang):
    """What `engine.kind` names in tests of whole runs: SGLang, with the `launcher` that a test gives it."""
