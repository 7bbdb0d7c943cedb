"""The script environment of a program: its source file, the directory that it imports from, its home.

The directory is known only in the child, where csrc/sandbox/programs.h writes it into the entries that this
module prepares in the zygote. The zygote imports nothing from there: `sys.path[0]` does not name a folder
yet.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from rocstar.sandbox import _native

NAME = "program.py"
"""The name of `__file__` in the program's directory; as in csrc/sandbox/programs.cpp."""

WORDS = (b"__file__", b"inspect", b"doctest", b"argv")
"""A program that may open its source file contains one of these words, and only then is the file written: it
costs a quarter of a small program."""

PLACES = ("/tmp/", "/var/tmp/", "/mnt/data/", "/dev/shm/")
"""As in csrc/sandbox/places.cpp. Python itself may be installed below them."""

MOST_CPUS = 32
"""The reported number of cores at most: thread pools use one thread per core, and a program has 64
threads."""


def settle() -> None:
    """Prepare the entries in the zygote."""
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
    """Remove LD_PRELOAD from the environment and return it: the library csrc/sandbox/places.cpp."""
    return os.environ.pop("LD_PRELOAD", "")


def _few(name: str) -> Callable[[], int | None]:
    count: int | None = getattr(os, name)()
    few = None if count is None else min(count, MOST_CPUS)

    def cpu_count() -> int | None:
        return few

    cpu_count.__name__ = cpu_count.__qualname__ = name
    return cpu_count


def write(code: bytes) -> None:
    """Write the program's source file, unless the caller sent a file of that name or there is no space."""
    with suppress(OSError):
        fd = os.open(NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(fd, "wb") as file:
            file.write(code)
