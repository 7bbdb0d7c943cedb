"""What makes a program a script: a file of its own, a directory that modules are imported from, a home.

The directory's name is known in the child only, where csrc/sandbox/programs.h writes it in its places; they
are made here, in the zygote. The zygote itself imports nothing from there: `sys.path[0]` names no folder yet.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from rocstar.sandbox import _native

NAME = "program.py"
"""Of `__file__`, in the program's directory; as in csrc/sandbox/programs.cpp."""

WORDS = (b"__file__", b"inspect", b"doctest", b"argv")
"""Who may open the file has to name one of these, and finds it there. Creating it for all would cost a
quarter of what a small program does."""

PLACES = ("/tmp/", "/var/tmp/", "/mnt/data/", "/dev/shm/")
"""As in csrc/sandbox/places.cpp: Python itself may lie there."""

MOST_CPUS = 32
"""Pools of threads are as large as there are cores, and a program has 64 threads."""


def settle() -> None:
    """Make the places in the zygote."""
    preload()
    os.environ["HOME"] = os.environ["TMPDIR"] = "."
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    kept = {*sys.path, sys.prefix, sys.base_prefix, package}
    _native.make_places(sorted(path for path in kept if path.startswith(PLACES)))
    sys.path.insert(0, "<the directory of the program>")
    sys.argv = [""]
    for name in ("cpu_count", "process_cpu_count"):
        if hasattr(os, name):
            setattr(os, name, _few(name))


def preload() -> str:
    """The library of the places (csrc/sandbox/places.cpp), which the environment then names no more."""
    return os.environ.pop("LD_PRELOAD", "")


def _few(name: str) -> Callable[[], int | None]:
    count: int | None = getattr(os, name)()
    few = None if count is None else min(count, MOST_CPUS)

    def cpu_count() -> int | None:
        return few

    cpu_count.__name__ = cpu_count.__qualname__ = name
    return cpu_count


def names_itself(code: bytes) -> bool:
    return any(word in code for word in WORDS)


def write(code: bytes) -> None:
    """Write the program's file. One that is there was sent, or has no room: the program runs without."""
    with suppress(OSError):
        fd = os.open(NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(fd, "wb") as file:
            file.write(code)
