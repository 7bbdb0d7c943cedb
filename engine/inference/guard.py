"""Run one command and end its whole process tree: `python -I guard.py -- COMMAND ...`.

    rocstar --(stdin pipe)--> guard --(fork, own session)--> command --> its own children and their children

The guard waits for the server's end or for the end of its own stdin, whichever is first. stdin ends when
rocstar closes it or dies, even by SIGKILL. Orphans of the server become the guard's children (subreaper), so
the whole tree is known by walking it. The server gets SIGKILL from the kernel if the guard itself is killed.

Exit status: the command's, or 128 + signal. Standard library only: it is run by path, alone.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""
POLL_S = 0.05


def descendants(of: int) -> list[int]:
    """Every live process below `of`, from /proc. Zombies have ended and do not count."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [of]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def end_tree(grace_s: float) -> None:
    """SIGTERM, then after `grace_s` SIGKILL until nothing is left."""
    signal_all(descendants(os.getpid()), signal.SIGTERM)
    end = time.monotonic() + grace_s
    while left := descendants(os.getpid()):
        if time.monotonic() >= end:
            signal_all(left, signal.SIGKILL)
        reap()
        time.sleep(POLL_S)


def reap() -> dict[int, int]:
    """The children that have ended, and their wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def main(command: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is rocstar's to handle: it ends us by closing stdin

    def before_exec() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=before_exec)
    except OSError as error:
        print(f"guard: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while True:
        ended = reap()
        if server.pid in ended:
            end_tree(grace_s=0.0)
            code = os.waitstatus_to_exitcode(ended[server.pid])
            return code if code >= 0 else 128 - code
        readable, _, _ = select.select([0], [], [], POLL_S)
        if readable and not os.read(0, 4096):
            end_tree(GRACE_S)
            return 128 + signal.SIGTERM


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
