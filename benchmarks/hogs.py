"""Busy loops, each bound to one core, which end with the block or with this process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = int(sys.argv[2])
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


def cores() -> list[int]:
    """Those this process may use."""
    return sorted(os.sched_getaffinity(0))


@contextlib.contextmanager
def taken(which: Sequence[int]) -> Iterator[None]:
    """One busy loop on each of these cores, at the usual priority."""
    command = [sys.executable, "-c", LOOP]
    loops = [subprocess.Popen([*command, str(core), str(os.getpid())]) for core in which]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
