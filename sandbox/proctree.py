"""What a tree of processes used, read from /proc: CPU with its reaped children, memory, descriptors, zombies.

CPU of a tree = utime + stime + cutime + cstime over the roots and all their living descendants. A child that
ended counts through its parent's cutime and cstime once the parent has reaped it. The kernel derives utime +
stime from nanoseconds and shows whole ticks (10 ms), so a reading is low by less than one tick per process
and field.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One line of /proc/PID/stat.

    Args:
        cpu_ticks: own time.
        reaped_ticks: that of its reaped children.
        start_ticks: when it began, since boot.
    """

    pid: int
    name: str
    state: str
    parent: int
    cpu_ticks: int
    reaped_ticks: int
    start_ticks: int


def parse_stat(line: str) -> Process:
    """The name may hold spaces and parentheses, so fields are counted from the last parenthesis."""
    start, end = line.index("("), line.rindex(")")
    fields = line[end + 2 :].split()
    user, system, reaped_user, reaped_system = (int(field) for field in fields[11:15])
    return Process(
        pid=int(line[:start]),
        name=line[start + 1 : end],
        state=fields[0],
        parent=int(fields[1]),
        cpu_ticks=user + system,
        reaped_ticks=reaped_user + reaped_system,
        start_ticks=int(fields[19]),
    )


def processes() -> list[Process]:
    """All processes of the machine. One that ends while being read is left out."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            found.append(parse_stat(Path("/proc", entry, "stat").read_text(errors="replace")))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def tree(roots: Iterable[int]) -> list[Process]:
    """The roots that live and all their descendants."""
    everyone = processes()
    children: dict[int, list[Process]] = {}
    for process in everyone:
        children.setdefault(process.parent, []).append(process)
    wanted = set(roots)
    pending = [process for process in everyone if process.pid in wanted]
    found: dict[int, Process] = {}
    while pending:
        process = pending.pop()
        if process.pid not in found:
            found[process.pid] = process
            pending += children.get(process.pid, [])
    return list(found.values())


def descendants(root: int) -> list[int]:
    """The living processes below `root`, without zombies that it has yet to reap."""
    return [
        process.pid
        for process in tree([root])
        if process.pid != root and not (process.state == "Z" and process.parent == root)
    ]


def cpu_s(roots: Iterable[int]) -> float:
    """CPU seconds the tree has used since it began. Take it while no call runs, before and after."""
    return sum(process.cpu_ticks + process.reaped_ticks for process in tree(roots)) / TICKS_PER_S


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def status_kib(pid: int, field: str) -> int:
    """A field of /proc/PID/status in KiB (`VmRSS`, `VmHWM`); 0 for a zombie, which has no memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def pss_kib(pid: int) -> int:
    """Proportional set size: pages shared with others are divided among them, so a sum counts each once.
    Falls back to the resident set, which is never smaller, where the kernel does not say."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except PermissionError:
        pass
    return status_kib(pid, "VmRSS")


def tree_pss_bytes(roots: Iterable[int]) -> int:
    total = 0
    for process in tree(roots):
        try:
            total += pss_kib(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total * 1024


def peak_rss_bytes(pid: int) -> int:
    """The largest resident set so far (VmHWM)."""
    return status_kib(pid, "VmHWM") * 1024
