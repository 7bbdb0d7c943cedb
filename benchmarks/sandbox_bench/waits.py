"""Where the time of a request went: the kernel says how long a thread ran, and how long it waited for a core.

    of_thread(pid) before and after   -->   ran_s: it worked      waited_s: it could have, and had no core
                                            the rest: it slept, for others or for a lock

What the machine below this one took away counts to neither, and is told of all cores together (`stolen_s`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rocstar.sandbox import proctree


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of one thread, since it was made or between two readings."""

    ran_s: float = 0.0
    waited_s: float = 0.0

    def __sub__(self, before: Cpu) -> Cpu:
        return Cpu(self.ran_s - before.ran_s, self.waited_s - before.waited_s)


def of_thread(pid: int) -> Cpu:
    """The first thread of a process; zeros where the kernel does not count, or it is gone."""
    try:
        ran_ns, waited_ns, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return Cpu()
    return Cpu(int(ran_ns) / 1e9, int(waited_ns) / 1e9)


def stolen_s() -> float:
    """What other machines on the same hardware took from all cores; 0 where that is not told."""
    words = Path("/proc/stat").read_text().split(maxsplit=9)
    return int(words[8]) / os.sysconf("SC_CLK_TCK")


def supervisor_of(service_pid: int) -> int:
    """The process that starts and watches the service's programs."""
    found = [one.pid for one in proctree.tree([service_pid]) if one.name == "_supervisor"]
    if len(found) != 1:
        raise RuntimeError(f"{service_pid} has {len(found)} supervisors")
    return found[0]


class Watch:
    """Readings of several processes, one of them this one. `lap` gives the differences since the last."""

    def __init__(self, **pids: int) -> None:
        self._pids = pids
        self._before = self._read()

    def lap(self) -> dict[str, Cpu]:
        now = self._read()
        found = {name: cpu - self._before[name] for name, cpu in now.items()}
        self._before = now
        return found

    def _read(self) -> dict[str, Cpu]:
        return {name: of_thread(pid) for name, pid in self._pids.items()}


def told(seconds: float, laps: dict[str, Cpu]) -> dict[str, float]:
    """One request in milliseconds: how long it took, and who ran or waited for a core meanwhile."""
    found = {"ms": round(1e3 * seconds, 1)}
    for name, cpu in laps.items():
        found[f"{name} ran"] = round(1e3 * cpu.ran_s, 1)
        found[f"{name} waited"] = round(1e3 * cpu.waited_s, 1)
    return found
