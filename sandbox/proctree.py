"""The processes of a tree and their CPU time, read from /proc.

The CPU time of a tree is utime + stime + cutime + cstime over the roots and all their live descendants. An
ended child is included in its parent's cutime and cstime once the parent has reaped it. The kernel rounds
down to whole ticks (10 ms), so a reading is low by less than one tick per process and field.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One line of /proc/PID/stat.

    Args:
        cpu_ticks: CPU time of the process.
        reaped_ticks: CPU time of its reaped children.
        start_ticks: its start, since boot.
    """

    pid: int
    name: str
    state: str
    parent: int
    cpu_ticks: int
    reaped_ticks: int
    start_ticks: int


def parse_stat(line: str) -> Process:
    """Parse a line. The name may have spaces and parentheses, so fields are counted from the last
    parenthesis."""
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
    """Return all processes of the machine, without those that end while they are read."""
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
    """Return the live roots and all their descendants."""
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
    """Return the pids of the live processes below `root`, without its unreaped zombies."""
    return [
        process.pid
        for process in tree([root])
        if process.pid != root and not (process.state == "Z" and process.parent == root)
    ]


def cpu_s(roots: Iterable[int]) -> float:
    """Return the CPU seconds of the tree since its start. Compare two readings while no call runs."""
    return sum(process.cpu_ticks + process.reaped_ticks for process in tree(roots)) / TICKS_PER_S
