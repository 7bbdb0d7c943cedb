"""Starts a service as a process group of its own, waits until it answers, and stops it for certain."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocstar.sandbox import proctree

STOP_TIMEOUT_S = 15.0

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": os.environ.get("HOME", "/"),
    "LANG": "C.UTF-8",
}
"""What a measured process sees. Variables that slow Python down (such as PYTHONDONTWRITEBYTECODE, under which
imports may be compiled anew each time) must not decide a comparison."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], timeout_s: float = 120.0) -> None:
    """Returns once the port accepts. RuntimeError when the process ends or the time is over."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with status {process.returncode} before it listened")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not listen on port {port} after {timeout_s} s")


def have_core(core: int, roots: Sequence[int]) -> None:
    """Lets everything of these trees run on one core and before all else there (SCHED_FIFO), so that the work
    of others on a busy machine neither interrupts it nor takes its caches. PermissionError without the right;
    what asks for a priority of its own later goes back to the usual ones."""
    for process in proctree.tree(roots):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})
            os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(1))


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The process lives inside the context; its output goes to `log`. At the end: SIGTERM, then SIGKILL to
    whatever is left of its tree. user: as whom it runs, with no right of ours."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env={**ENVIRONMENT, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **as_user(user),
        )
    try:
        yield process
    finally:
        family = [member.pid for member in proctree.tree([process.pid])]
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _kill_leftovers(family)


def as_user(user: int | None) -> dict[str, Any]:
    """What subprocess takes to start a process as that user."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def _kill_leftovers(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
