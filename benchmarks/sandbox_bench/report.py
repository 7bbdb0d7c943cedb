"""Where a figure comes from and how it is shown: the machine, a JSON file, a bar."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def commit() -> str:
    """The checkout's commit; empty outside a checkout, and where there is no git."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def machine() -> dict[str, Any]:
    """Commit, processor, cores, memory, kernel and Python of this run."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "commit": commit(),
        "cpu": next((line.split(":")[1].strip() for line in facts if "model name" in line), "?"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "load_1min_at_end": round(os.getloadavg()[0], 2),
        "time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def bar(name: str, value: float, wanted: float, *, at_most: bool) -> dict[str, Any]:
    """One acceptance bar and whether the value meets it."""
    met = value <= wanted if at_most else value >= wanted
    return {"name": name, "value": value, "at_most" if at_most else "at_least": wanted, "met": met}


def command(arguments: Sequence[str]) -> str:
    """The command line as anyone could give it: a path outside the repository is shown by its last part."""
    shown = []
    for argument in arguments:
        option, equals, value = argument.rpartition("=")
        path = Path(value)
        outside = path.is_absolute() or ".." in path.parts
        shown.append(option + equals + (path.name if outside else value))
    return " ".join(["python", *shown])


def finish(part: str, result: dict[str, Any], bars: Sequence[Mapping[str, Any]], out: Path | None) -> int:
    """Prints the bars and writes the JSON file. Exit status 1 when a bar is missed."""
    for one in bars:
        wanted = f"<= {one['at_most']}" if "at_most" in one else f">= {one['at_least']}"
        print(f"{'met   ' if one['met'] else 'MISSED'}  {one['name']}: {one['value']:.6g} (wanted {wanted})")
    whole = {
        "benchmark": part,
        "machine": machine(),
        "command": command(sys.argv),
        "bars": list(bars),
        **result,
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(whole, indent=1) + "\n")
        print(f"wrote {out}")
    return int(not all(one["met"] for one in bars))
