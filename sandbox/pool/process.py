"""The supervisor process as the pool sees it: how it starts, a socket for frames, and its death.

    pool --frames--> transport ==socket==> supervisor (csrc/sandbox/supervise.h) --> zygotes --> children
     ^                                         |
     +------ on_frame <-- buffer_updated <-----+

Nobody waits here but `start` and `close`; the pool is told of every frame, and once of the end.

A supervisor that hangs is noticed and killed:

    every TICK_S, while it has calls: PING -> supervisor -> PONG, or any other frame

Time is counted in ticks of this event loop, not by a clock: a loop that stood still itself, with answers
waiting to be read, blames nobody.
"""

import asyncio
import json
import os
import re
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from rocstar.sandbox import _native
from rocstar.sandbox.child import bash
from rocstar.sandbox.child.cpp import CPP, CppOptions
from rocstar.sandbox.child.declared import words_of
from rocstar.sandbox.child.flavours import Flavour
from rocstar.sandbox.pool import wire
from rocstar.sandbox.types import SandboxError

START_TIMEOUT_S = 120.0
"""A cold import of the heaviest flavour on a busy machine takes seconds; a hang must still end."""

EXIT_TIMEOUT_S = 10.0

TICK_S = 20.0

SILENT_S = 120.0
"""A supervisor that says nothing for so long, though it is asked, hangs. Its one thread waits for nothing but
the disk that scratch directories are on, and that can take half a minute on an overloaded machine."""

STUCK_S = 60.0
"""One that only answers PING, and no call for so long beyond what the longest may take, has lost them."""

JOINED_BYTES = 1 << 16
"""More is not copied to be sent: that would take the loop's time."""

READ_BYTES = 1 << 16
"""Read at a time, into memory that is kept: a result is small, and asyncio's own buffer would be a quarter of
a megabyte, mapped anew for each."""

SUPERVISOR = Path(__file__).parents[1] / "_supervisor"

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TMPDIR": ".",
    "MPLCONFIGDIR": ".",
    "MPLBACKEND": "module://rocstar.sandbox.child.figures",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
"""All that supervisor, zygotes and children see. A fixed hash seed makes the order of sets repeatable; the
temporary directory is the program's own."""

PACKAGES = re.compile(r".*/lib(64)?/python3(\.\d+t?)?/(site|dist)-packages")
"""Where an interpreter, or a virtual environment, has its packages, and nobody anything else."""

SYSTEM_PATHS = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/dev/zero", "/dev/urandom", "/dev/random"),
    *(f"/sys/devices/system/cpu/{name}" for name in ("online", "possible", "present")),
    *("/proc/cpuinfo", "/proc/meminfo"),
)
"""What a program may read besides the Python installation."""


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
    declared: tuple[Flavour, ...] = ()
    cpp: CppOptions = field(default_factory=CppOptions)
    scratch_parent: str = field(default_factory=lambda: default_scratch_parent())
    python: str = field(default_factory=lambda: sys.executable)
    program: str = str(SUPERVISOR)

    def command(self, fd: int) -> list[str]:
        sites = [flavour.site for flavour in self.declared if flavour.site]
        beside = [folder for one in sites for folder in folders_beside(one)]
        layered = layered_packages([*sys.path, *beside])
        linked = linked_packages([*layered, *sites])
        paths = [*python_paths(), *layered, *linked, *sites]
        kept = [*kept_paths(self.python), *layered, *linked, *sites, *beside]
        words = [self.program, f"--fd={fd}", f"--parent={os.getpid()}", f"--max-live={self.max_live}"]
        words += [f"--max-sessions={self.max_sessions}", f"--memory-bytes={self.memory_bytes}"]
        words += [f"--lease-us={round(self.lease_s * 1e6)}", f"--replicas={self.replicas}"]
        words += [f"--scratch-parent={self.scratch_parent}"]
        words += [f"--flavour={name}" for name in self.flavours]
        words += [f"--scratch-bytes={self.scratch_bytes}"]
        words += [f"--keep={path}" for path in kept]
        words += [f"--readable={path}" for path in (*paths, *SYSTEM_PATHS)]
        words += [f"--without={layer}" for layer in self.without]
        words += [f"--private={path}" for path in private_folders((*paths, *kept))]
        words += [f"--nice={self.nice}"] if self.nice else []
        words += ["--allow-no-isolation"] if self.allow_no_isolation else []
        zygote = [self.python, "-P", "-m", "rocstar.sandbox.child.zygote", *words_of(self.declared)]
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
            options: How it is started.
            on_frame: Told of every frame but those of the start and PONG.
            on_read: Told when all frames that came together have been told.
            on_end: Told that it is gone.
            longest_s: How long a call that it has may take, in seconds; None when it has none.
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
        """Until its connection is lost."""

        self._socket: socket.socket
        self._process: subprocess.Popen[bytes]
        self.facts: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, *pieces: bytes) -> None:
        """Sends frames, in pieces. The supervisor may have a call now, and is watched until it has none."""
        self._send(*pieces)
        if self._timer is None:
            self._silent_s = self._stuck_s = 0.0
            self._wind()

    def _send(self, *pieces: bytes) -> None:
        assert self._transport is not None
        if sum(map(len, pieces)) < JOINED_BYTES:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)

    # --- start and end -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns once every flavour is warm. Raises SandboxError; the process is gone then."""
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._process = self._spawn(theirs.fileno(), ours)
        ours.setblocking(False)
        connecting = asyncio.ensure_future(self._loop.create_unix_connection(lambda: self, sock=ours))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                # uvloop never tells the protocol that a connection was lost whose making was cancelled, and
                # `close` waits for that. The socket is connected already: its making takes no time.
                await asyncio.shield(connecting)
                await self._hello
        except BaseException as error:  # cancelled, too: the child is ours until it has said hello
            self._hello.cancel()  # nobody waits for it any more, nor for why it does not come
            await asyncio.wait([connecting], timeout=EXIT_TIMEOUT_S)
            await asyncio.shield(self.close())
            if isinstance(error, TimeoutError):
                late = [name for n, name in enumerate(self._options.flavours) if n not in self._warm]
                message = (
                    f"not ready after {START_TIMEOUT_S:.0f} s: {', '.join(late)}; what it imports hangs, or "
                    "this machine has too much to do: leave it out, or start again"
                )
                raise SandboxError(message, kind="zygote_start", retryable=True) from None
            raise

    def _spawn(self, fd: int, ours: socket.socket) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                self._options.command(fd),
                env=ENVIRONMENT,
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                close_fds=True,
            )
        except OSError as error:
            ours.close()
            message = f"cannot start {self._options.program}: {error.strerror}; `make setup` builds it"
            raise SandboxError(message, kind="zygote_start", retryable=False) from None

    async def close(self) -> None:
        """Ends the process and all its children; returns when they are gone, and what they wrote."""
        self._stop_watching()
        if not self._hello.done():
            self._hello.cancel()  # before it is lost, which would be an error that nobody takes
        if self._transport is not None and not self._lost.done():
            with suppress(OSError):  # a process that was forked from this one may hold the socket open
                self._socket.shutdown(socket.SHUT_RDWR)
            self._transport.abort()  # a supervisor that hangs would never take what is still to be sent
            await self._lost
        await self._reap()
        await remove_left(self.facts.get("scratch"), self.pid)

    def kill(self) -> None:
        """The kernel kills zygotes and children with it."""
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
        # uvloop's transports are no subclass of asyncio.Transport, so an isinstance would refuse them.
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
                self._refused(json.loads(frame[1]))
            else:
                self._heard(frame[0])
                if frame[0] == wire.ZYGOTE:
                    self._warm.add(wire.decode_zygote(frame[1])[0])
                if frame[0] != wire.PONG:
                    on_frame(frame)
        self._on_read()

    def _refused(self, fatal: dict[str, Any]) -> None:
        if not self._hello.done():
            retryable = fatal.get("retryable", fatal["kind"] == "zygote_start")
            error = SandboxError(fatal["message"], kind=fatal["kind"], retryable=retryable)
            self._hello.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        if not self._hello.done():
            message = f"the sandbox supervisor (pid {self.pid}) died while starting"
            self._hello.set_exception(SandboxError(message, kind="zygote_start", retryable=True))
        self.alive = False
        self._lost.set_result(None)
        self._on_end()

    # --- whether it hangs --------------------------------------------------------------------------------

    def _heard(self, kind: int) -> None:
        self._silent_s = 0.0
        if kind != wire.PONG:
            self._stuck_s = 0.0

    def _wind(self) -> None:
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
            self._silent_s = self._stuck_s = 0.0  # it has as much time to die
            self.kill()
        else:
            self._send(wire.encode_id(wire.PING, 0))
        self._wind()


async def remove_left(base: str | None, pid: int) -> None:
    """Removes what a supervisor could not remove itself: where its files were mounted, and all of them if it
    was killed. The name is checked: it came over a socket."""
    if base is None or not Path(base).name.startswith(f"rocstar-{pid}-"):
        return
    try:
        os.rmdir(base)
    except FileNotFoundError:
        return
    except OSError:
        try:
            await asyncio.to_thread(_native.remove_tree, base)
        except RuntimeError:  # the interpreter ends, and makes no more threads
            _native.remove_tree(base)


def default_scratch_parent() -> str:
    """Where scratch directories go: the usual temporary directory, if a user without rights can reach it."""
    usual = tempfile.gettempdir()
    return usual if is_world_readable(usual) else "/tmp"


def python_paths() -> list[str]:
    """The folders that this interpreter imports from. Of those that a .pth file points to see
    `layered_packages`."""
    found = [
        sys.prefix,
        sys.base_prefix,
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    ]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return [path for path in dict.fromkeys(map(os.path.realpath, found)) if os.path.isdir(path)]


def layered_packages(folders: Iterable[str]) -> list[str]:
    """Those of `folders`, which a .pth file may have named, that are where some interpreter has its packages:
    an environment lies over another. What else is named there is somebody's working copy, or a home."""
    found = {os.path.realpath(folder) for folder in folders if os.path.isabs(folder)}
    home = own_home()
    return sorted(
        path
        for path in found
        if PACKAGES.fullmatch(path) and os.path.isdir(path) and not home.is_relative_to(path)
    )


def folders_beside(packages: str) -> list[str]:
    """What the .pth files of a folder of packages name besides, as far as it is there."""
    found = []
    for file in sorted(Path(packages).glob("*.pth")):
        with suppress(OSError, UnicodeDecodeError):  # which the interpreter passes over as well
            lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
            found += [os.path.join(packages, line) for line in lines if line and not line.startswith("#")]
    return [os.path.normpath(folder) for folder in found if os.path.isdir(folder)]


def working_copies() -> list[str]:
    """Folders that this environment imports from, by a .pth file or an editable install, and that no program
    may read."""
    import importlib.metadata

    sites = dict.fromkeys(os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
    found = {os.path.realpath(folder) for one in sites for folder in folders_beside(one)}
    for one in importlib.metadata.distributions(path=list(sites)):
        noted = json.loads(one.read_text("direct_url.json") or "{}")
        if (
            noted.get("dir_info", {}).get("editable") and one.name != "rocstar"
        ):  # which is opened for its zygotes
            found.add(os.path.realpath(unquote(urlsplit(noted["url"]).path)))
    readable = [*python_paths(), *layered_packages(found)]
    return sorted(path for path in found if not any(Path(path).is_relative_to(one) for one in readable))


def linked_packages(besides: Iterable[str] = ()) -> list[str]:
    """Where modules lie that a folder of packages, of this environment or of `besides`, has as links to
    elsewhere, a home, say: what a link leads to, and no folder around it, which may be anything's."""
    folders = {*besides, *(sysconfig.get_path(name) for name in ("purelib", "platlib"))}
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    found: set[str] = set()
    for folder in sorted(folders):
        with suppress(OSError):  # it is not there, or not ours to list
            found.update(os.path.realpath(entry.path) for entry in os.scandir(folder) if is_package(entry))
    return sorted(found)


def is_package(link: "os.DirEntry[str]") -> bool:
    """Whether it is a link to what an import opens: a file by the name of a module, or a folder that is
    neither hidden, as ~/.ssh is, nor around its own or a home, as / is."""
    if not link.is_symlink():
        return False
    target = os.path.realpath(link.path)
    if not os.path.isdir(target):
        return os.path.isfile(target) and link.name.endswith(tuple(all_suffixes()))
    around = Path(target)
    inner = (Path(link.path).parent.resolve(), own_home())
    hidden = link.name.startswith(".") or around.name.startswith(".")
    return not hidden and not any(path.is_relative_to(around) for path in inner)


def own_home() -> Path:
    """As it is told, or what nothing lies below: a container's user may have neither a name nor a HOME."""
    return Path(os.path.realpath(os.path.expanduser("~")))


def kept_paths(python: str) -> list[str]:
    """What a zygote starts from and imports besides: the interpreter by each of its names, the folders of
    sys.path, and this package, which an editable install has elsewhere."""
    names = [python]
    while os.path.islink(names[-1]) and len(names) < 16:
        names.append(os.path.join(os.path.dirname(names[-1]), os.readlink(names[-1])))
    folders = [os.path.dirname(os.path.normpath(name)) for name in names]
    ours = str(Path(__file__).parents[1])
    found = [*sys.path, sys.prefix, sys.base_prefix, *folders, ours]
    absolute = [path for path in found if os.path.isabs(path)]
    return list(dict.fromkeys([*map(os.path.realpath, absolute), *absolute]))


def private_folders(paths: Iterable[str]) -> list[str]:
    """The topmost folders on the way to `paths` into which not every user may go, if there are any: a home,
    say."""
    found = []
    for path in paths:
        above = [folder for folder in reversed(Path(path).parents) if folder.is_dir()]
        closed = next((folder for folder in above if not folder.stat().st_mode & 0o001), None)
        if closed is not None:
            found.append(str(closed))
    return list(dict.fromkeys(found))


def is_world_readable(path: str) -> bool:
    """True when a user with no rights of its own can reach and list the folder."""
    folder = Path(path)
    reachable = all(parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents))
    return reachable and bool(folder.stat().st_mode & 0o004)
