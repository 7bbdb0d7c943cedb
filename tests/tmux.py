"""Terminals for tests: a tmux server of their own, driven by keys and read as text.

    with tmux_server() as server:
        terminal = await server.open(["rocstar", "chat", url], columns=40)
        await terminal.type("2+2?", "Enter")
        text = await terminal.showing("you> ")

Who waits: `showing` and `ended` look again and again until it is so, for PATIENCE_S at most. A server ends
with who made it, however that ends: one of its sessions does nothing but wait for the end of a pipe that
the maker holds.
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
"""Between two looks at a screen: a look costs a process."""
HISTORY = ["-S", "-"]


@dataclass(frozen=True)
class TmuxServer:
    """A tmux server that reads nobody's configuration, at a socket in `folder`."""

    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def socket(self) -> Path:
        """Where it listens."""
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
        """A terminal in which the command runs. None in the environment: the variable is not set there."""
        name = f"t{next(self._numbers)}"
        told = environment or {}
        unset = [word for key, value in told.items() if value is None for word in ("-u", key)]
        given = [f"{key}={value}" for key, value in told.items() if value is not None]
        size = ["-x", str(columns), "-y", str(rows), "-c", str(cwd or self.folder)]
        code = str(self.folder / f"{name}.code")  # tmux itself loses it now and then
        noting = ["/bin/sh", "-c", 'trap : INT; "$@"; echo $? > "$0"', code]
        await self.do("new-session", "-d", "-s", name, *size, *noting, "env", *unset, *given, *command)
        return Terminal(self, name)

    async def do(self, *words: str) -> str:
        """A command of tmux's, and what it prints."""
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
        """Start it. The end of a pipe that it lives as long as."""
        pipe = self.folder / "maker"
        os.mkfifo(pipe)
        wait = f"read line < '{pipe}'; exec tmux -S '{self.socket}' kill-server"
        self._do("new-session", "-d", "-s", "maker", "/bin/sh", "-c", wait)
        self._do("set-option", "-g", "remain-on-exit", "on")
        for _ in _looks():
            with contextlib.suppress(OSError):  # nobody reads it yet
                return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        raise AssertionError(f"the tmux server at {self.socket} does not wait for its end")

    def wait_for_end(self) -> None:
        """Return when nobody listens at its socket any more."""
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
        """Paste, in brackets where the program asked for these."""
        file = self.server.folder / "pasted"
        file.write_text(text, encoding="utf-8")
        await self.server.do("load-buffer", str(file))
        await self.server.do("paste-buffer", "-p", "-t", self.name)

    async def resize(self, columns: int, rows: int) -> None:
        """Make it so large."""
        await self.server.do("resize-window", "-t", self.name, "-x", str(columns), "-y", str(rows))

    async def lines(self) -> list[str]:
        """Its lines as they stand there, also those that have left the screen; no empty ones below."""
        return (await self._captured()).rstrip("\n").split("\n")

    async def text(self) -> str:
        """The same, with lines joined that only its width has broken."""
        text = await self._captured("-J")
        return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))

    async def showing(self, *wanted: str, times: int = 1) -> str:
        """Its text, as soon as all of these stand in it, each so many times."""
        return await self._when(lambda text: all(text.count(one) >= times for one in wanted), str(wanted))

    async def ending(self, wanted: str) -> str:
        """Its text, as soon as it ends so."""
        return await self._when(lambda text: text.endswith(wanted), f"... {wanted!r}")

    async def ended(self) -> int:
        """The exit code of its command, as soon as there is one; 128 and more for a signal."""
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
    """So many looks as patience lasts, a moment apart."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        yield
        time.sleep(AGAIN_S)


@contextlib.contextmanager
def tmux_server() -> Iterator[TmuxServer]:
    """A server while the block runs; the running test is left out where there is no tmux."""
    needs.commands("tmux")
    # A socket's name is at most 107 bytes long, so the folder is none of pytest's.
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
