"""One command on one node, for a launcher elsewhere: it ends when the launcher's connection does.

    launcher ── ssh, srun ──> this: {"command", "folder", "environment"} as the first line of standard input
                                └─> the command, and whatever it starts

Who waits: this process for the command's end and for the end of standard input, whichever comes first. At
the second it asks the command to end (SIGTERM), waits GRACE_S, and kills. When it ends nothing is left of
what the command has started, also where that lost its own parent. Names and passwords come by standard
input: a command line is readable by every user of a node.

torchrun ends with 1 whatever its ranks end with. A rank that finds the recipe, an option, a path or the disk
not usable says so in the file that ROCSTAR_MISTAKE names (train/recipe/errors.py), and this ends with 2.

With --clock it first says `ready`, and this node's time as soon as the order is there.
Only the standard library: it runs before anything else is known to be there.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

GRACE_S = 30.0
"""From SIGTERM to SIGKILL: torchrun passes it on, and rank 0 leaves what Ctrl-C leaves."""
REAP_S = 10.0
BECOME_PARENT = 36
"""PR_SET_CHILD_SUBREAPER: what loses its parent below us becomes ours."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG."""
MISTAKE, INTERRUPTED = 2, 143
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class AskedToEnd(Exception):
    """SIGTERM, SIGINT or SIGHUP has come."""


def _ask(number: int, frame: FrameType | None) -> None:
    raise AskedToEnd


def descendants(root: int) -> list[int]:
    """Every process below `root`, in no order."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(path.name))
    found: list[int] = []
    next_ones = [root]
    while next_ones:
        next_ones = [child for parent in next_ones for child in children.get(parent, [])]
        found += next_ones
    return found


def end_all() -> None:
    """Kill whatever is left below this process, and see it gone."""
    until = time.monotonic() + REAP_S
    while (left := descendants(os.getpid())) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


@contextlib.contextmanager
def started(order: dict, told: Path) -> Iterator[subprocess.Popen]:
    """The order's command in a session of its own; afterwards it and all that it started are gone. `told`:
    the file in which it may say that it cannot be of use to start it again."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(BECOME_PARENT, 1, 0, 0, 0)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a sandbox's session has half a dozen each
    process = subprocess.Popen(
        order["command"],
        cwd=order["folder"],
        env=os.environ | order["environment"] | {"ROCSTAR_MISTAKE": str(told)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0),
    )
    try:
        yield process
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        end_all()


def watch(process: subprocess.Popen, line: int) -> int:
    """The exit code of the command, as a shell has it; at the end of `line` it is ended."""
    ended = os.pidfd_open(process.pid)
    try:
        while True:
            ready, _, _ = select.select([ended, line], [], [])
            if ended in ready:
                break
            if not os.read(line, 1 << 16):
                raise AskedToEnd
    except AskedToEnd:
        process.terminate()
        with contextlib.suppress(AskedToEnd):
            select.select([ended], [], [], GRACE_S)
        if process.poll() is None:
            process.kill()
        process.wait()
        return INTERRUPTED
    finally:
        os.close(ended)
    code = process.wait()
    return code if code >= 0 else 128 - code


def main() -> int:
    for number in SIGNALS:
        signal.signal(number, _ask)
    try:
        if tells_time := sys.argv[1:] == ["--clock"]:
            print("ready", flush=True)
        first = b""
        while not first.endswith(b"\n"):  # not by sys.stdin: it would read on into its buffer
            byte = os.read(0, 1)
            if not byte:
                return INTERRUPTED
            first += byte
        if tells_time:
            print(time.time(), flush=True)
        order = json.loads(first)
    except AskedToEnd:
        return INTERRUPTED
    try:
        with tempfile.TemporaryDirectory(prefix="rocstar-node-") as folder:
            told = Path(folder) / "mistake"
            with started(order, told) as process:
                code = watch(process, 0)
            return MISTAKE if told.exists() else code
    except OSError as error:
        print(f"{os.uname().nodename}: {error}", file=sys.stderr)
        return MISTAKE


if __name__ == "__main__":
    sys.exit(main())
