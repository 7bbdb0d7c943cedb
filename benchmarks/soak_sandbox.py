"""Soak: tens of thousands of mixed calls through one pool, and nothing may grow, linger or answer wrongly.

    python benchmarks/soak_sandbox.py --calls 50000

    1000 calls at a time, 64 in flight -> all answered -> sample -> the next 1000

A sample is taken once nothing is in flight and killed children had time to end: resident set and descriptors
of this process, the supervisor and each zygote, and zombies below them. The first fifth of the samples is
warm-up; a line is fitted to the rest. Flat means: over the fitted span the resident set grows by at most 3%
or 2 MiB, descriptors by less than one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.progress import Progress
from sandbox_bench.report import ROOT, bar, finish
from sandbox_bench.soak_calls import KINDS, Caller
from sandbox_bench.stats import slope

from rocstar.sandbox import proctree
from rocstar.sandbox.bench import table
from rocstar.sandbox.pool.pool import SandboxPool

CHUNK = 1000
IN_FLIGHT = 64
CHUNK_TIMEOUT_S = 300.0
SETTLE_S = 2.0
MIB = 1 << 20
RELATIVE_GROWTH, ABSOLUTE_GROWTH = 0.03, 2 * MIB


def sample() -> dict[str, Any]:
    """Resident bytes and descriptors per process of this tree, named by role, and the number of zombies."""
    rows, zombies = {}, 0
    for member in proctree.tree([os.getpid()]):
        if member.state == "Z":
            zombies += 1
            continue
        role = "pool" if member.pid == os.getpid() else f"{member.name} {member.pid}"
        try:
            rss = proctree.status_kib(member.pid, "VmRSS") * 1024
            rows[role] = {"rss": rss, "descriptors": proctree.descriptors(member.pid)}
        except (FileNotFoundError, ProcessLookupError):
            continue
    return {"processes": rows, "zombies": zombies}


def ipc_objects() -> int:
    """System V objects and POSIX shared memory and queues on this machine."""
    tables = (Path("/proc/sysvipc", name) for name in ("shm", "sem", "msg"))
    lines = sum(len(path.read_text().splitlines()) - 1 for path in tables if path.exists())
    folders = (Path("/dev/shm"), Path("/dev/mqueue"))
    return lines + sum(len(list(folder.iterdir())) for folder in folders if folder.is_dir())


def growth(name: str, samples: list[dict[str, Any]], calls: list[int]) -> dict[str, Any] | None:
    """Fitted growth of one process over the samples after warm-up; None if it was not there all the time."""
    rows = [one["processes"].get(name) for one in samples]
    if any(row is None for row in rows):
        return None
    span = calls[-1] - calls[0]
    rss, held = [row["rss"] for row in rows], [row["descriptors"] for row in rows]
    rss_growth, held_growth = slope(calls, rss) * span, slope(calls, held) * span
    allowed = max(ABSOLUTE_GROWTH, RELATIVE_GROWTH * rss[0])
    return {
        "process": name,
        "rss_first": rss[0],
        "rss_last": rss[-1],
        "rss_fitted_growth": round(rss_growth),
        "rss_growth_allowed": round(allowed),
        "descriptors_first": held[0],
        "descriptors_last": held[-1],
        "descriptors_fitted_growth": round(held_growth, 3),
        "flat": rss_growth <= allowed and held_growth < 1,
    }


async def settled(pool: SandboxPool, expected: set[str]) -> dict[str, Any]:
    """A sample once nothing is in flight and only the expected processes are there, or after SETTLE_S: a
    child that was just killed needs a moment to end, one that is there for longer is left over."""
    until = time.monotonic() + SETTLE_S
    while True:
        taken = sample()
        clean = not pool.in_flight and not taken["zombies"] and taken["processes"].keys() == expected
        if clean or time.monotonic() > until:
            return taken
        await asyncio.sleep(0.02)


async def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Runs all calls and returns what was counted; the pool is closed again at the end."""
    rng = random.Random(options.seed)
    kinds = [kind for kind in KINDS if kind.flavour == "stdlib" or not options.stdlib_only]
    samples: list[dict[str, Any]] = []
    calls_at: list[int] = []
    flavours = tuple(dict.fromkeys(kind.flavour for kind in kinds))
    started = time.perf_counter()
    async with SandboxPool(flavours) as pool:
        expected = set(sample()["processes"])
        caller = Caller(pool, IN_FLIGHT)
        with Progress(disable=options.quiet) as progress:
            task = progress.add_task("calls", total=options.calls)
            while caller.calls < options.calls:
                room = min(CHUNK, options.calls - caller.calls)
                async with asyncio.timeout(CHUNK_TIMEOUT_S):
                    await caller.chunk(rng.choices(kinds, [kind.weight for kind in kinds], k=room), rng)
                samples.append(await settled(pool, expected))
                calls_at.append(caller.calls)
                progress.update(task, completed=caller.calls)
        last = await caller.print_one()
        seconds = time.perf_counter() - started
    return {
        "calls": caller.calls,
        "by_kind": dict(caller.by_kind),
        "wrong": caller.wrong[:50],
        "wrong_count": len(caller.wrong),
        "still_right_at_the_end": last,
        "seconds": round(seconds, 1),
        "calls_per_s": round(caller.calls / seconds, 1),
        "samples": samples,
        "calls_at": calls_at,
    }


def report(options: argparse.Namespace, result: dict[str, Any], left: dict[str, Any]) -> int:
    samples, calls_at = result.pop("samples"), result.pop("calls_at")
    skip = len(samples) // 5
    kept, calls_kept = samples[skip:], calls_at[skip:]
    names = dict.fromkeys(name for one in kept for name in one["processes"])
    rows = [row for name in names if (row := growth(name, kept, calls_kept)) is not None]
    passing = Counter(name for one in kept for name in one["processes"])
    transient = [name for name, seen in passing.items() if seen < len(kept)]
    headings = ("process", "RSS first MB", "last", "fitted growth", "allowed", "fds first", "last", "flat")
    lines = []
    for row in rows:
        sizes = ("rss_first", "rss_last", "rss_fitted_growth", "rss_growth_allowed")
        tail = [row["descriptors_first"], row["descriptors_last"], row["flat"]]
        lines.append([row["process"], *(round(row[size] / MIB, 2) for size in sizes), *tail])
    print(table(headings, lines), end="\n\n")
    print(table(("kind", "calls"), result["by_kind"].items()), end="\n\n")
    for name, got in result["wrong"][:10]:
        print(f"wrong: {name}: {got}")
    zombies = max(one["zombies"] for one in samples)
    bars = [
        bar("wrong answers", result["wrong_count"], 0, at_most=True),
        bar("processes that grow", sum(not row["flat"] for row in rows), 0, at_most=True),
        bar("processes in some samples only", len(transient), 0, at_most=True),
        bar("zombies in the worst sample", zombies, 0, at_most=True),
        bar("processes left", left["processes"], 0, at_most=True),
        bar("files left", len(left["files"]), 0, at_most=True),
        bar("IPC objects left", left["ipc"], 0, at_most=True),
        bar("print(1) right at the end", int(result["still_right_at_the_end"]), 1, at_most=False),
    ]
    result |= {"growth": rows, "transient": transient, "left": left, "rss_over_time": _over_time(samples)}
    result["calls_at"] = calls_at
    return finish("soak", result, bars, options.out)


def _over_time(samples: list[dict[str, Any]]) -> dict[str, list[int]]:
    names = dict.fromkeys(name for one in samples for name in one["processes"])
    return {name: [one["processes"].get(name, {}).get("rss", 0) for one in samples] for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stdlib-only", action="store_true", help="no numpy and sympy programs")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "sandbox_soak.json")
    options = parser.parse_args()
    # All that the pool puts into a temporary directory lands here, where leftovers can be counted.
    with tempfile.TemporaryDirectory(prefix="rocstar-soak-") as folder:
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = folder
        elsewhere = leftovers(folder)
        ipc = ipc_objects()
        result = asyncio.run(soak(options))
        left = {
            "processes": len(proctree.tree([os.getpid()])) - 1,
            "files": sorted(leftovers(folder) - elsewhere),
            "ipc": max(0, ipc_objects() - ipc),
        }
        tempfile.tempdir = None
    return report(options, result, left)


def leftovers(folder: str) -> set[str]:
    """Everything in our own temporary directory, and entries named after rocstar in the shared ones."""
    found = {str(path) for path in Path(folder).rglob("*")}
    for shared in ("/tmp", "/dev/shm", "/run"):
        found |= {str(path) for path in Path(shared).glob("*rocstar*") if str(path) != folder}
    return found


if __name__ == "__main__":
    sys.exit(main())
