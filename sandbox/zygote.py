"""The process that children are forked from: import, warm up, then hand over to the native loop for ever.

Started by the pool as `python -P -m rocstar.sandbox.zygote`; says HELLO or FATAL on the socket it inherits,
and from then on speaks the frames of wire.py. Its environment holds nothing of the parent's.
"""

import argparse
import atexit
import contextlib
import gc
import importlib
import io
import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocstar.sandbox import _native, cell, wire
from rocstar.sandbox.flavours import FLAVOURS, Flavour

FIRST_SLOT_UID = 100_000
"""First uid of the children when the zygote is root; slots count up from there."""

SYSTEM_PATHS = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"),
    *("/sys/devices/system/cpu", "/proc/cpuinfo", "/proc/meminfo"),
)
"""What a program may read besides the Python installation."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 once the socket closes; 3 when the flavour cannot be offered."""
    options = parse_arguments(argv)
    if not _native.die_with_parent(options.parent):
        return 0
    try:
        preload(FLAVOURS[options.flavour])
    except ImportError as error:
        flavour = FLAVOURS[options.flavour]
        message = (
            f"flavour {flavour.name!r} needs {error.name or error}: {flavour.install or 'repair this Python'}"
        )
        say(options.fd, wire.FATAL, {"kind": "missing_import", "message": message})
        return 3
    layers = choose_layers(frozenset(options.without))
    settle()
    say(options.fd, wire.HELLO, {"isolation": layers.names, "memory_exit": cell.MEMORY_EXIT})
    _native.serve(
        options.fd,
        max_live=options.max_live,
        layers=layers,
        run_cell=cell.run_cell,
        memory_exit=cell.MEMORY_EXIT,
    )
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    # A formatter with a width does not import shutil, whose shared libraries every fork would copy.
    parser = argparse.ArgumentParser(
        prog="rocstar.sandbox.zygote", formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100)
    )
    parser.add_argument("--flavour", choices=sorted(FLAVOURS), required=True)
    parser.add_argument("--fd", type=int, required=True, help="the inherited stream socket")
    parser.add_argument(
        "--parent", type=int, required=True, help="pid of the pool, whose death ends this process"
    )
    parser.add_argument("--max-live", type=int, required=True, help="children at a time")
    parser.add_argument("--without", nargs="*", default=[], help="layers to leave out")
    return parser.parse_args(argv)


def say(fd: int, kind: int, fact: dict[str, Any]) -> None:
    left = wire.encode_json(kind, fact)
    while left:
        left = left[os.write(fd, left) :]


def preload(flavour: Flavour) -> None:
    """Imports the flavour's modules and runs its warm-up. Raises ImportError."""
    for name in flavour.modules:
        importlib.import_module(name)
    with contextlib.redirect_stderr(io.StringIO()):  # math-verify warns that it runs without its own clock
        exec(compile(flavour.warm_up, "<warm-up>", "exec"), {"__name__": "warm_up"})


def settle() -> None:
    """Leaves a heap that forks cheaply, and nothing of the zygote that a child would run at its end."""
    sys.modules["__main__"] = cell.MAIN
    sys.argv = [""]
    os.environ.pop("HOME", None)
    cell.open_streams()
    cell.run_source(b"None")
    atexit._clear()
    gc.collect()
    gc.freeze()
    _native.collapse_heap()


def choose_layers(without: frozenset[str]) -> _native.Layers:
    """Every layer that this kernel and this user can have, except those in `without`."""
    facts = _native.probe()
    paths = python_paths()
    return _native.Layers(
        seccomp=facts["seccomp"] and "seccomp" not in without,
        landlock=facts["landlock_abi"] > 0 and "landlock" not in without,
        slot_uid="uid" not in without and can_change_uid() and all(map(is_world_readable, paths)),
        readable_paths=[*paths, *SYSTEM_PATHS],
    )


def python_paths() -> list[str]:
    """The folders that this interpreter imports from. Folders that a .pth file points to are left out: they
    are somebody's working copies."""
    found = [
        sys.prefix,
        sys.base_prefix,
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    ]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return [path for path in dict.fromkeys(map(os.path.realpath, found)) if os.path.isdir(path)]


def is_world_readable(path: str) -> bool:
    """True when a user with no rights of its own can reach and list the folder."""
    folder = Path(path)
    reachable = all(parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents))
    return reachable and bool(folder.stat().st_mode & 0o004)


def can_change_uid() -> bool:
    """True when root may become a slot's user here: a user namespace may have no such uid."""
    if os.geteuid() != 0:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(FIRST_SLOT_UID, FIRST_SLOT_UID, FIRST_SLOT_UID)
            os.setresuid(FIRST_SLOT_UID, FIRST_SLOT_UID, FIRST_SLOT_UID)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


if __name__ == "__main__":
    os._exit(main())
