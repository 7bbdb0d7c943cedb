"""What an attack program needs, and what this machine has of it: without, it is skipped."""

import os
import platform
from collections.abc import Collection, Sequence
from importlib.util import find_spec

from rocstar.sandbox.attacks.catalogue import Program
from rocstar.sandbox.attacks.host import allows_user_namespace
from rocstar.sandbox.child import bash
from rocstar.sandbox.types import ExecResult

BASH_LAYERS = frozenset(("seccomp", "notify", "landlock", "scratch"))


def has_numeric() -> bool:
    return find_spec("numpy") is not None and find_spec("sympy") is not None


def flavours_for(programs: Sequence[Program], without: Collection[str] = ()) -> list[str]:
    """Those that the programs want and this machine has; no bash without a layer that it needs."""
    wanted = frozenset[str]().union(*map(needs_of, programs))
    able = bash.offered() and not BASH_LAYERS.intersection(without)
    here = {"numeric": has_numeric(), "bash": able}
    return ["stdlib", *(name for name, installed in here.items() if installed and name in wanted)]


def facts_of(place: ExecResult, flavours: Sequence[str]) -> frozenset[str]:
    """Of this machine, and of the pool that ran a program which printed its directory: without some layers it
    may lack others as well, a user for each program below a private home say."""
    machine = {"x86_64": "x86_64", "aarch64": "arm64"}.get(platform.machine(), "")
    found = {
        machine: bool(machine),
        "root": os.geteuid() == 0,
        "ordinary": os.geteuid() != 0,
        "scratch": place.stdout.strip() != "/",
        "users": "uid" in place.isolation.split("+"),
        "numeric": has_numeric(),
        "bash": "bash" in flavours,
        "userns": allows_user_namespace(),
    }
    return frozenset(name for name, holds in found.items() if holds)


def needs_of(program: Program) -> frozenset[str]:
    return program.needs | {part.flavour for part in program.parts if part.flavour != "stdlib"}
