"""Which layers hold a program on this machine, and what would bring the missing ones."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from rocstar.sandbox import _native
from rocstar.sandbox.zygote import can_change_uid, is_world_readable, python_paths

SIGNAL_SCOPE_ABI = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """name: as in `ExecResult.isolation`. required: no pool starts without it. fix: "" when active."""

    name: str
    active: bool
    required: bool
    detail: str
    fix: str = ""


def probe() -> list[Layer]:
    """The layers of a program started here and now, the strongest need first."""
    return list(_layers())


def _layers() -> Iterator[Layer]:
    facts = _native.probe()
    yield Layer(
        name="seccomp",
        active=facts["seccomp"],
        required=True,
        detail="system calls: no fork, exec, socket, ptrace, mount or opening for writing",
        fix=""
        if facts["seccomp"]
        else "use a kernel with CONFIG_SECCOMP_FILTER and a container runtime that allows seccomp",
    )
    yield Layer(name="nnp", active=True, required=True, detail="no_new_privs: no gain from setuid programs")
    yield Layer(
        name="rlimits",
        active=True,
        required=True,
        detail="address space, CPU time, file size, open files, no core",
    )
    abi = facts["landlock_abi"]
    yield Layer(
        name="landlock",
        active=abi > 0,
        required=False,
        detail=f"ABI {abi}: reads only below the Python installation and system libraries"
        + ("; no signals or abstract sockets to others" if abi >= SIGNAL_SCOPE_ABI else ""),
        fix=""
        if abi
        else "boot Linux 5.13 or newer with `lsm=landlock,...`; without it programs read what this user can",
    )
    yield _uid_layer()


def _uid_layer() -> Layer:
    hidden = [path for path in python_paths() if not is_world_readable(path)]
    if not can_change_uid():
        active, fix = False, "start as root (in a container, say) to give every program a user of its own"
    elif hidden:
        active, fix = False, f"other users cannot read {hidden[0]}; install Python in a world-readable place"
    else:
        active, fix = True, ""
    return Layer(
        name="uid",
        active=active,
        required=False,
        detail=f"a user id of each child's own (this process has uid {os.geteuid()})",
        fix=fix,
    )
