"""The limits of this machine that matter to a pool, each with what is too small about it."""

import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SMALL_PID_MAX = 1 << 16
SMALL_NOFILE = 4096
SMALL_NPROC = 4096
SMALL_PIDS = 4096
COLLAPSE_KERNEL = (6, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A limit of the machine that matters to a pool. note: "" when there is nothing to say of it."""

    name: str
    value: str
    note: str = ""
    fix: str = ""


def limits_of(facts: Mapping[str, Any]) -> Iterator[Measure]:
    pid_max = facts["pid_max"]
    yield measure(
        "pid_max",
        str(pid_max),
        (0 < pid_max < SMALL_PID_MAX)
        and f"at most {pid_max} processes and threads on the machine, sessions included",
        "sysctl kernel.pid_max=4194304",
    )
    pids = facts["pids"]
    if pids:
        note = pids < SMALL_PIDS and f"at most {pids} processes and threads, sessions included"
        yield measure("pids", str(pids), note, f"a container: `--pids-limit {4 * SMALL_PIDS}`")
    for name, small, use in (
        ("nproc", SMALL_NPROC, "programs and sessions count as this user's processes"),
        ("nofile", SMALL_NOFILE, "a live program takes four descriptors"),
    ):
        value = facts[name]
        is_small = value != resource.RLIM_INFINITY and value < small
        shown = "unlimited" if value == resource.RLIM_INFINITY else str(value)
        yield measure(name, shown, is_small and use, f"raise `ulimit` ({name}) to {small} or more")
    yield measure("memory", f"{facts['memory_bytes'] / 2**30:.1f} GiB for all programs together", False, "")
    pages = facts["huge_pages"]
    yield measure(
        "huge pages",
        pages or "none",
        pages not in ("madvise", "always") and "a fork of a large flavour costs about twice as much",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )
    yield measure(
        "kernel",
        facts["kernel"],
        kernel_version(facts["kernel"]) < COLLAPSE_KERNEL and "heaps cannot be gathered into huge pages",
        "boot Linux 6.1 or newer",
    )
    absent = "; ".join(facts["flavours_left_out"])
    yield measure("flavours", ", ".join(facts["flavours"]), absent, "run the command that the note names")
    copies = ", ".join(facts["working_copies"])
    yield measure(
        "packages",
        "working copies among them" if copies else "all can be read",
        copies and f"of {copies} programs read no data file, and import nothing that was not imported before",
        "install it without `-e` (beside a PYTHONPATH: with `--target`), or leave it out of the .pth file",
    )
    free = facts["scratch_free_bytes"]
    yield measure("scratch", f"{free / 2**30:.1f} GiB free", free < 1 << 30 and "little room", "free some")


def measure(name: str, value: str, note: str | bool, fix: str) -> Measure:
    return Measure(name=name, value=value, note=note or "", fix=fix if note else "")  # type: ignore[arg-type]


def kernel_version(release: str) -> tuple[int, int]:
    major, minor, *_ = [*release.split("."), "0"]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)
