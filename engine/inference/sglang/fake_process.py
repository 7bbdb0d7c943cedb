"""A `ServerProcess` whose server is an object of this process: it starts at once, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocstar.engine.inference.sglang.fake_server import FakeServer


class InProcess:
    """Put it where `replica.ServerProcess` is. It reads the model and the port out of the command."""

    running: list[InProcess] = []  # noqa: RUF012 - of all; `reset` empties it
    started: list[list[str]] = []  # noqa: RUF012
    """The command of every start."""
    on_start: Callable[[FakeServer], None] | None = None
    """What to do to each server first: its faults."""

    def __init__(
        self, command: Sequence[str], *, log_path: Path, env: Mapping[str, str | None] | None = None
    ) -> None:
        self.command, self.log_path, self.pid = list(command), log_path, 0
        self.returncode: int | None = None
        self.ended = asyncio.Event()
        self.is_started = False

    @classmethod
    def reset(cls) -> None:
        cls.running, cls.started, cls.on_start = [], [], None

    def argument(self, name: str) -> str:
        return self.command[self.command.index(name) + 1]

    async def start(self) -> None:
        self.is_started = True
        self.started.append(self.command)
        model, port = Path(self.argument("--model-path")), int(self.argument("--port"))
        self.server = FakeServer(model, port=port, policy=True)
        if (on_start := type(self).on_start) is not None:
            on_start(self.server)
        await self.server.__aenter__()
        self.running.append(self)

    async def wait_ready(self, probe: Callable[[], Awaitable[bool]], **_: Any) -> None:
        assert await probe()

    async def wait(self) -> int:
        await self.ended.wait()
        return -9

    async def kill(self) -> None:
        """As by SIGKILL."""
        self.returncode = -9
        await self.server.kill()
        self.ended.set()

    async def stop(self) -> None:
        self.running.remove(self)
        await self.server.kill()
