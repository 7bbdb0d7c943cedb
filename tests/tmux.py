"""Terminals for tests: a tmux server, driven by keys and read as text.

    with tmux_server() as server:
        terminal = await server.open(["rocstar", "chat", url], columns=40)
        await terminal.type("2+2?", "Enter")
        text = await terminal.showing("you> ")

`showing`, `ending` and `ended` poll for PATIENCE_S at most. The server ends with the process that started it:
one of its sessions waits for the end of a pipe that this process holds.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import needs
from .patience import PATIENCE_S

AGAIN_S = 0.03
"""Seconds between two reads of a screen: a read starts a process."""
HISTORY = ["-S", "-"]


@dataclass(frozen=True)
class TmuxServer:
    """A tmux server without configuration files, at a socket in `folder`."""

    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    async def open(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 24,
        cwd: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
    ) -> "Terminal":
        """Run the command in a terminal; a variable of value None is not set in its environment."""
        name = f"t{next(self._numbers)}"
        variables = (environment or {}).items()
        unset = [word for key, value in variables if value is None for word in ("-u", key)]
        given = [f"{key}={value}" for key, value in variables if value is not None]
        size = ["-x", str(columns), "-y", str(rows), "-c", str(cwd or self.folder)]
        code = str(self.folder / f"{name}.code")  # tmux itself sometimes loses it
        noting = ["/bin/sh", "-c", 'trap : INT; "$@"; echo $? > "$0"', code]
        await self.do("new-session", "-d", "-s", name, *size, *noting, "env", *unset, *given, *command)
        return Terminal(self, name)

    async def do(self, *words: str) -> str:
        """Run a command of tmux and return its output."""
        return await asyncio.to_thread(self._do, *words)

    def _do(self, *words: str) -> str:
        ended = subprocess.run(
            ["tmux", "-u", "-S", str(self.socket), "-f", "/dev/null", *words],
            env=os.environ | {"LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def start(self) -> int:
        """Start the server; return the pipe whose end ends it."""
        pipe = self.folder / "maker"
        os.mkfifo(pipe)
        wait = f"read line < '{pipe}'; exec tmux -S '{self.socket}' kill-server"
        self._do("new-session", "-d", "-s", "maker", "/bin/sh", "-c", wait)
        self._do("set-option", "-g", "remain-on-exit", "on")
        for _ in _looks():
            with contextlib.suppress(OSError):  # it has no reader yet
                return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        raise AssertionError(f"the tmux server at {self.socket} does not wait for its end")

    def wait_for_end(self) -> None:
        """Return when the socket is closed."""
        for _ in _looks():
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect(str(self.socket))
                except OSError:
                    return
        raise AssertionError(f"the tmux server at {self.socket} does not end")


@dataclass(frozen=True)
class Terminal:
    """A terminal of a server, and the command in it."""

    server: TmuxServer
    name: str

    async def type(self, *keys: str) -> None:
        """Press keys: a text as it is, or a key by tmux's name for it, such as `Enter` or `C-c`."""
        await self.server.do("send-keys", "-t", self.name, *keys)

    async def paste(self, text: str) -> None:
        """Paste a text, in brackets if the program asked for them."""
        file = self.server.folder / "pasted"
        file.write_text(text, encoding="utf-8")
        await self.server.do("load-buffer", str(file))
        await self.server.do("paste-buffer", "-p", "-t", self.name)

    async def resize(self, columns: int, rows: int) -> None:
        await self.server.do("resize-window", "-t", self.name, "-x", str(columns), "-y", str(rows))

    async def lines(self) -> list[str]:
        """Return its lines and the history, without empty lines at the end."""
        return (await self._captured()).rstrip("\n").split("\n")

    async def text(self) -> str:
        """Return its lines, with wrapped ones joined."""
        text = await self._captured("-J")
        return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))

    async def showing(self, *wanted: str, times: int = 1) -> str:
        """Wait until its text has all of `wanted`, each `times` times; return the text."""
        return await self._when(lambda text: all(text.count(one) >= times for one in wanted), str(wanted))

    async def ending(self, wanted: str) -> str:
        """Wait until its text ends with `wanted`; return the text."""
        return await self._when(lambda text: text.endswith(wanted), f"... {wanted!r}")

    async def ended(self) -> int:
        """Wait for the end of its command; return the exit code, 128 and more for a signal."""
        file = self.server.folder / f"{self.name}.code"
        async with asyncio.timeout(PATIENCE_S):
            while not (file.exists() and file.read_text().endswith("\n")):  # noqa: ASYNC110
                await asyncio.sleep(AGAIN_S)
        return int(file.read_text())

    async def _captured(self, *options: str) -> str:
        return await self.server.do("capture-pane", "-p", *HISTORY, *options, "-t", self.name)

    async def _when(self, holds: Callable[[str], bool], wanted: str) -> str:
        text = ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds(text := await self.text()):  # noqa: ASYNC110
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            raise AssertionError(f"{wanted} was never shown:\n{text}") from None
        return text


def _looks() -> Iterator[None]:
    """Poll for PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        yield
        time.sleep(AGAIN_S)


@contextlib.contextmanager
def tmux_server() -> Iterator[TmuxServer]:
    """Run a server during the block; skip the running test if tmux is not installed."""
    needs.commands("tmux")
    # A socket's path has 107 bytes at most, which pytest's own folders exceed.
    server = TmuxServer(Path(tempfile.mkdtemp(prefix="tmux-")))
    held = None
    try:
        held = server.start()
        yield server
    finally:
        if held is not None:
            os.close(held)
            server.wait_for_end()
        shutil.rmtree(server.folder)
