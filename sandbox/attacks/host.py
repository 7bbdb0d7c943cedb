"""The environment of the attacks: bait to steal, servers to reach, and a search for leftovers.

The process that uses it becomes the reaper of its descendants, so that orphans of an attack are still found.
"""

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rocstar.sandbox.proctree import descendants

BAIT_VARIABLE = "ROCSTAR_BAIT"
MARK = "rocstar-breach"
"""A part of the names of all objects that an attack tries to leave outside its process."""

PUBLIC_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/")
_PR_SET_CHILD_SUBREAPER = 36


class Host:
    """Bait, listeners and the state before the attacks. Use it as a context manager around the pool; set
    `baseline` to the `census` of the warm pool."""

    def __init__(self) -> None:
        self._bait_text = f"swordfish {os.urandom(8).hex()}"
        self.folder = Path(tempfile.mkdtemp(prefix="rocstar-bait-"))
        self._listeners = selectors.DefaultSelector()
        self.baseline: dict[int, int] = {}
        self._ipc = sysv_objects()
        self.scratch_root: Path | None = None  # the parent of all scratch directories

    def __enter__(self) -> Self:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.lay_bait()
        self._tcp = self._listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self._udp = self._listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self._name = f"{MARK}-{os.getpid()}"
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self._name)
        for kind, name in ((socket.SOCK_STREAM, "stream"), (socket.SOCK_DGRAM, "datagram")):
            self._listen(socket.AF_UNIX, kind, str(self.folder / name))
            (self.folder / name).chmod(0o777)
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._listeners.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._listeners.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _listen(self, family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
        server = socket.socket(family, kind)
        server.setblocking(False)
        server.bind(address)
        if kind == socket.SOCK_STREAM:
            server.listen()
        self._listeners.register(server, selectors.EVENT_READ)
        return server

    def lay_bait(self) -> None:
        """Write files that every user may read, so that only the sandbox protects them."""
        self.folder.chmod(0o755)
        home = self.folder / "home" / ".ssh"
        home.mkdir(parents=True, exist_ok=True)
        for path in (self.folder / "secret", self.folder / "spare", home / "id_rsa", home.parent / ".netrc"):
            path.write_text(self._bait_text)
            path.chmod(0o644)

    def facts(self) -> str:
        """Return the facts for a program's standard input, as JSON."""
        facts = {
            "asked_s": time.time(),
            "pids": [os.getpid(), os.getppid(), *descendants(os.getpid())],
            # Prefixed so that no library maps them to the program's own /tmp (csrc/sandbox/places.cpp).
            "bait_file": f"/.{self.folder / 'secret'}",
            "bait_spare": f"/.{self.folder / 'spare'}",
            "bait_folder": f"/.{self.folder}",
            "home": str(self.folder / "home"),
            "tcp_port": self._tcp.getsockname()[1],
            "udp_port": self._udp.getsockname()[1],
            "unix_path": str(self.folder / "stream"),
            "unix_datagram_path": str(self.folder / "datagram"),
            "unix_name": self._name,
        }
        return json.dumps(facts)

    def leftovers(self) -> Iterator[str]:
        """Yield the current differences from the baseline; they may still be disappearing."""
        now = census()
        for pid in now.keys() - self.baseline.keys():
            yield f"process {pid} is left: {command_of(pid)}"
        for pid in self.baseline.keys() - now.keys():
            yield f"process {pid} of the pool is gone"
        for pid in now.keys() & self.baseline.keys():
            if now[pid] > self.baseline[pid]:
                yield f"process {pid} has {now[pid]} descriptors in place of {self.baseline[pid]}"
        for mark in left_marks(str(self.folder)):
            yield f"{mark} is left"
        for name in ("secret", "home/.ssh/id_rsa"):
            path = self.folder / name
            if not path.is_file() or path.read_text() != self._bait_text:
                yield f"the caller's file {name} was changed"
        if self.scratch_root is not None:
            with contextlib.suppress(OSError):
                for entry in os.scandir(self.scratch_root):
                    if entry.is_dir(follow_symlinks=False):
                        with contextlib.suppress(PermissionError):
                            if inside := os.listdir(entry):
                                yield f"{entry.path} holds {inside[:5]}"
        for made in sysv_objects() - self._ipc:
            yield f"a System V object is left: {made}"

    def visitors(self) -> list[str]:
        """Return the connections and datagrams since the last call; each is a breach."""
        seen = []
        for key, _ in self._listeners.select(0):
            server = key.fileobj
            assert isinstance(server, socket.socket)
            with contextlib.suppress(OSError):
                if server.type == socket.SOCK_STREAM:
                    server.accept()[0].close()
                else:
                    server.recv(1 << 16)
                seen.append(f"a program reached {server.getsockname()!r}")
        return seen


def kill_descendants() -> list[str]:
    """Kill every process below this one and return a line for each."""
    found = {pid: command_of(pid) for pid in descendants(os.getpid())}
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {pid} was left: {command}" for pid, command in found.items()]


def left_marks(*folders: str) -> Iterator[str]:
    """Yield marked paths in public folders, the working directory and `folders`."""
    for folder in (*PUBLIC_FOLDERS, os.getcwd(), *folders):
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):
                if MARK in name:
                    yield os.path.join(folder, name)


def refuse_leftovers() -> None:
    """Raise FileExistsError for a leftover of another run, which would count against every attack."""
    if left := next(left_marks(), ""):
        raise FileExistsError(f"{left} is a leftover of another run of the attacks. Remove it first.")


def census() -> dict[int, int]:
    """Return the number of open descriptors of this process and of each of its descendants."""
    counts = {}
    for pid in (os.getpid(), *descendants(os.getpid())):
        with contextlib.suppress(OSError):
            counts[pid] = len(os.listdir(f"/proc/{pid}/fd"))
    return counts


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()[:200]
    return "gone"


def sysv_objects() -> frozenset[str]:
    """Return `shm KEY ID` and so on for every System V object of the machine."""
    found = set()
    for kind in ("shm", "sem", "msg"):
        with contextlib.suppress(OSError), open(f"/proc/sysvipc/{kind}") as file:
            found |= {f"{kind} {' '.join(line.split()[:2])}" for line in file.readlines()[1:]}
    return frozenset(found)


def allows_user_namespace() -> bool:
    """Return True if this user may create a user namespace, tried in a child process."""
    clone_newuser = 0x10000000
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(clone_newuser) == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0
