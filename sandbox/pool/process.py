"""The supervisor process: its start, its socket for frames, and its end.

    pool --frames--> transport ==socket==> supervisor (csrc/sandbox/supervise.h) --> zygotes --> children
     ^                                         |
     +------ on_frame <-- buffer_updated <-----+

Only `start` and `close` wait; the pool's callbacks receive every frame, and once the end.

A supervisor that hangs is detected and killed:

    every TICK_S, while it has calls: PING -> supervisor -> PONG, or any other frame

Time is counted in ticks of this event loop and not by a clock, so that a blocked loop with unread answers
does not count against the supervisor.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rocstar.sandbox import _native
from rocstar.sandbox.child import bash
from rocstar.sandbox.child.cpp import CPP, CppOptions
from rocstar.sandbox.child.flavours import Flavour
from rocstar.sandbox.child.user_flavours import encode_flavours
from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.paths import SANDBOX, default_scratch_parent, own_entry, path_options, pythonpath_hint
from rocstar.sandbox.types import SandboxError

START_TIMEOUT_S = 120.0
"""The time limit of a start. A cold import of the heaviest flavour on a busy machine takes seconds."""

EXIT_TIMEOUT_S = 10.0

TICK_S = 20.0

SILENT_S = 120.0
"""Seconds without any frame after which a supervisor with calls counts as hung. Its only thread waits for
nothing but the disk of the scratch directories, up to half a minute on an overloaded machine."""

STUCK_S = START_TIMEOUT_S + 60.0
"""Seconds beyond the longest time limit after which a supervisor that only answers PING has lost its calls.
It must exceed the start of a zygote: the supervisor itself ends a zygote that hangs."""

JOINED_BYTES = 1 << 16
"""Larger frames are sent without copying, which would block the loop."""

READ_BYTES = 1 << 16
"""The size of the reused read buffer. Results are small; asyncio would map a new buffer of 256 KiB for each
read."""

SUPERVISOR = SANDBOX / "_supervisor"

ZYGOTE = (
    "import os, sys; rocstar = type(sys)('rocstar'); rocstar.__path__ = [sys.argv.pop(1)]; "
    "sys.modules['rocstar'] = rocstar; from rocstar.sandbox.child import zygote; os._exit(zygote.main())"
)
"""The code of a zygote: imports the package of this process by its path. A zygote has no PYTHONPATH, and its
environment may have no rocstar or another one."""

PLACES = SANDBOX / "_places.so"
"""The library that zygotes and programs preload (csrc/sandbox/places.cpp)."""

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "LOGNAME": "sandbox",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TMPDIR": ".",
    "MPLCONFIGDIR": ".",
    "MPLBACKEND": "module://rocstar.sandbox.child.figures",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
"""The whole environment of supervisor, zygotes and children. A fixed hash seed makes the order of sets
repeatable; TMPDIR is the program's working directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    flavours: tuple[str, ...]
    max_live: int
    max_sessions: int
    memory_bytes: int
    lease_s: float
    scratch_bytes: int = 1 << 30
    replicas: int = 1
    without: tuple[str, ...] = ()
    allow_no_isolation: bool = False
    nice: int = 0
    zygote_start_s: float = START_TIMEOUT_S
    """The supervisor ends a restarted zygote that takes longer. Less than STUCK_S."""
    warm_before: bool = False
    """True if the pool was warm before: a flavour that cannot start then fails only its own calls."""
    declared: tuple[Flavour, ...] = ()
    cpp: CppOptions = field(default_factory=CppOptions)
    scratch_parent: str = field(default_factory=default_scratch_parent)
    python: str = field(default_factory=lambda: sys.executable)
    program: str = str(SUPERVISOR)

    def command(self, fd: int) -> list[str]:
        words = [self.program, f"--fd={fd}", f"--parent={os.getpid()}", f"--max-live={self.max_live}"]
        words += [f"--max-sessions={self.max_sessions}", f"--memory-bytes={self.memory_bytes}"]
        words += [f"--lease-us={round(self.lease_s * 1e6)}", f"--replicas={self.replicas}"]
        words += [f"--zygote-start-us={round(self.zygote_start_s * 1e6)}"]
        words += [f"--scratch-parent={self.scratch_parent}"]
        words += [f"--flavour={name}" for name in self.flavours]
        words += [f"--scratch-bytes={self.scratch_bytes}"]
        words += path_options(self.python, [flavour.site for flavour in self.declared if flavour.site])
        words += [f"--without={layer}" for layer in self.without]
        words += [f"--nice={self.nice}"] if self.nice else []
        words += ["--warm-before"] if self.warm_before else []
        words += ["--allow-no-isolation"] if self.allow_no_isolation else []
        if PLACES.exists():
            words += [f"--preload={PLACES}", f"--library={PLACES}"]
        zygote = [self.python, "-P", "-c", ZYGOTE, str(SANDBOX.parent), *encode_flavours(self.declared)]
        zygote += [f"--packages={packages}"] if (packages := own_entry()) else []
        if CPP in self.flavours:
            words += self.cpp.supervisor_words()
            zygote += [f"--compile={json.dumps(self.cpp.zygote_words())}"]
        if bash.BASH in self.flavours:
            words += bash.supervisor_words()
        return [*words, "--", *zygote]


class Supervisor(asyncio.BufferedProtocol):
    """A running supervisor. Invariant: `on_end` is called exactly once, after the last `on_frame`."""

    def __init__(
        self,
        options: SupervisorOptions,
        *,
        on_frame: Callable[[tuple[Any, ...]], None],
        on_read: Callable[[], None],
        on_end: Callable[[], None],
        longest_s: Callable[[], float | None],
    ) -> None:
        """
        Args:
            options: How the process is started.
            on_frame: Called with every frame except those of the start and PONG.
            on_read: Called after all frames of one read.
            on_end: Called when the process is gone.
            longest_s: Returns the longest time limit of its calls in seconds, or None if it has none.
        """
        self._options = options
        self._on_frame = on_frame
        self._on_read = on_read
        self._on_end = on_end
        self._longest_s = longest_s
        self._timer: asyncio.TimerHandle | None = None
        self._silent_s = self._stuck_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._reader = _native.ResultReader()
        self._read = memoryview(bytearray(READ_BYTES))
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._warm: set[int] = set()
        self.alive = True
        """True until the connection is lost."""

        self._socket: socket.socket
        self._process: subprocess.Popen[bytes]
        self.facts: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, *pieces: bytes) -> None:
        """Send frames in pieces, and watch the supervisor for hangs until it has no calls."""
        self._send(*pieces)
        if self._timer is None:
            self._silent_s = self._stuck_s = 0.0
            self._start_timer()

    def _send(self, *pieces: bytes) -> None:
        assert self._transport is not None
        if sum(map(len, pieces)) < JOINED_BYTES:
            self._transport.write(b"".join(pieces))
        else:
            # CPython 3.12 and later keep an empty last piece in the transport, and the loop then never
            # sleeps.
            self._transport.writelines([piece for piece in pieces if piece])

    # --- start and end -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Wait until every flavour is warm, or was before. Raise SandboxError; no process is left then."""
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._process = self._spawn(theirs.fileno(), ours)
        ours.setblocking(False)
        connecting = asyncio.ensure_future(self._loop.create_unix_connection(lambda: self, sock=ours))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                # Shielded, because uvloop does not call `connection_lost`, for which `close` waits, if the
                # creation was cancelled. The socket is already connected, so this does not take long.
                await asyncio.shield(connecting)
                await self._hello
        except BaseException as error:  # also a cancellation: the process must not outlive a failed start
            self._hello.cancel()  # its exception would never be retrieved
            await asyncio.wait([connecting], timeout=EXIT_TIMEOUT_S)
            await asyncio.shield(self.close())
            if isinstance(error, TimeoutError):
                late = [name for n, name in enumerate(self._options.flavours) if n not in self._warm]
                message = (
                    f"not ready after {START_TIMEOUT_S:.0f} s: {', '.join(late)}. Its imports hang, or this "
                    "machine is overloaded. Omit the flavour or start again."
                )
                raise SandboxError(message, kind="zygote_start", retryable=True) from None
            raise

    def _spawn(self, fd: int, ours: socket.socket) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                self._options.command(fd), env=ENVIRONMENT, pass_fds=(fd,), stdin=subprocess.DEVNULL, close_fds=True
            )
        except OSError as error:
            ours.close()
            message = f"cannot start {self._options.program}: {error.strerror}. Run `make setup` to build it."
            raise SandboxError(message, kind="zygote_start", retryable=False) from None

    async def close(self) -> None:
        """End the process and all its children, and remove their files."""
        self._stop_watching()
        if not self._hello.done():
            self._hello.cancel()  # `connection_lost` would set an exception that is never retrieved
        if self._transport is not None and not self._lost.done():
            with suppress(OSError):  # a process that was forked from this one may hold the socket open
                self._socket.shutdown(socket.SHUT_RDWR)
            self._transport.abort()  # a hung supervisor would never read the rest
            await self._lost
        await self._reap()
        await remove_left(self.facts.get("scratch"), self.pid)

    def kill(self) -> None:
        """Kill the process; the kernel kills zygotes and children with it."""
        self._process.kill()

    async def _reap(self) -> None:
        if self._process.returncode is not None:
            return
        ended = asyncio.Event()
        pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await ended.wait()
        except TimeoutError:
            self._process.kill()
        finally:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._process.wait()

    # --- asyncio.BufferedProtocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio.Transport, so isinstance would fail.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        on_frame = self._on_frame
        for frame in self._reader.feed(bytes(self._read[:nbytes])):
            if frame[0] == wire.HELLO:
                self.facts = json.loads(frame[1])
                if not self._hello.done():
                    self._hello.set_result(None)
            elif frame[0] == wire.FATAL:
                if not self._hello.done():
                    fatal = json.loads(frame[1])
                    retryable = fatal.get("retryable", fatal["kind"] == "zygote_start")
                    message = fatal["message"] + pythonpath_hint(fatal.get("module", ""))
                    error = SandboxError(message, kind=fatal["kind"], retryable=retryable)
                    self._hello.set_exception(error)
            else:
                self._note_frame(frame[0])
                if frame[0] == wire.ZYGOTE:
                    self._warm.add(wire.decode_zygote(frame[1])[0])
                if frame[0] != wire.PONG:
                    on_frame(frame)
        self._on_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        if not self._hello.done():
            message = f"the sandbox supervisor (pid {self.pid}) died while starting"
            self._hello.set_exception(SandboxError(message, kind="zygote_start", retryable=True))
        self.alive = False
        self._lost.set_result(None)
        self._on_end()

    # --- detection of hangs ------------------------------------------------------------------------------

    def _note_frame(self, kind: int) -> None:
        self._silent_s = 0.0
        if kind != wire.PONG:
            self._stuck_s = 0.0

    def _start_timer(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        longest_s = self._longest_s()
        if longest_s is None:
            return
        self._silent_s += TICK_S
        self._stuck_s += TICK_S
        if self._silent_s > SILENT_S or self._stuck_s > STUCK_S + longest_s:
            self._silent_s = self._stuck_s = 0.0  # wait as long before the next kill
            self.kill()
        else:
            self._send(wire.encode_ids(wire.PING, 0))
        self._start_timer()


async def remove_left(base: str | None, pid: int) -> None:
    """Remove the scratch directory of a supervisor that could not do it itself: the mount point, or all files
    if it was killed. The name is checked, because it was received over a socket."""
    if base is None or not Path(base).name.startswith(f"rocstar-{pid}-"):
        return
    try:
        os.rmdir(base)
    except FileNotFoundError:
        return
    except OSError:
        try:
            await asyncio.to_thread(_native.remove_tree, base)
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            _native.remove_tree(base)
