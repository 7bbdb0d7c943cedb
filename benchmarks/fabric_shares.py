"""Owners of one client share the workers of a Redis: by their weights, and one's flood beside another's call.

    python benchmarks/fabric_shares.py [--seconds 20] [--out FILE]

    nodes    2 worker processes with real pools and one redis-server, all on this machine
    shares   two owners, weights 2 and 1, each with 200 programs open, of which workers have some twenty: who
             has an answer calls again in the same turn of the loop, so that neither ever runs dry. Programs
             are alike, and counted as their answers come
    flood    one owner has 2,000 sleepers of 0.2 s waiting; the other's print(1), one after the other, first
             alone, then beside it, then beside what follows quick programs of the first owner

Bars: the heavier owner has twice the programs of the lighter, give or take 5%; beside the flood a print(1)
waits at most one sleeper's time longer than alone (by p99), and none fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop
from fabric_chaos import Nodes
from sandbox_bench.report import bar, command, finish
from sandbox_bench.stats import latency_ms, median

from rocstar.sandbox.fabric import RedisFabric
from rocstar.sandbox.types import ExecRequest, SandboxError

WEIGHTS = {"heavy": 2, "light": 1}
WAITING = 200
"""Calls that each owner keeps waiting."""

SLICE_S = 0.2
SLEEP = f"import time; time.sleep({SLICE_S})"
SHORT = "import time; time.sleep(0.02)"
"""Long enough that workers, and not the client, are what is shared."""

SOME_DOZENS = 60
"""Programs of a stretch whose ratio is taken by itself."""

FLOOD = 2000
PAUSE_S = 0.02


async def run_one(fabric: RedisFabric, owner: str, code: str) -> None:
    result = await fabric.run(ExecRequest(code=code, flavour="stdlib", owner=owner))
    if result.status != "ok":
        raise RuntimeError(f"{owner}: {result}")


async def share(fabric: RedisFabric, seconds: float) -> list[str]:
    """Whose programs ended, in order, while all had more waiting."""
    ended: list[str] = []
    counting = False

    async def keep_busy(owner: str) -> None:
        while True:
            await run_one(fabric, owner, SHORT)
            if counting:
                ended.append(owner)

    tasks = [asyncio.ensure_future(keep_busy(owner)) for owner in WEIGHTS for _ in range(WAITING)]
    await asyncio.sleep(2.0)
    counting = True
    await asyncio.sleep(seconds)
    counting = False
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return ended


def ratio_of(ended: list[str]) -> float:
    counts = Counter(ended)
    return counts["heavy"] / max(1, counts["light"])


async def print_ones(fabric: RedisFabric, seconds: float, wrong: Counter[str]) -> list[float]:
    """Latencies in seconds."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        try:
            await run_one(fabric, "light", "print(1)")
        except (SandboxError, RuntimeError) as error:
            wrong[repr(error)[:200]] += 1
        found.append(time.perf_counter() - began)
        await asyncio.sleep(PAUSE_S)
    return found


@contextlib.asynccontextmanager
async def flood(fabric: RedisFabric, code: str) -> AsyncIterator[None]:
    """Waits until its first programs ended."""
    requests = [ExecRequest(code=code, flavour="stdlib", owner="heavy")] * FLOOD
    begun = asyncio.Event()

    async def keep_flooding() -> None:
        while True:
            async for _ in fabric.run_batch(requests):
                begun.set()

    task = asyncio.create_task(keep_flooding())
    await begun.wait()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def measure(nodes: Nodes, seconds: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    wrong: Counter[str] = Counter()
    async with RedisFabric(nodes.url, weights=WEIGHTS) as fabric:
        await fabric.workers()
        await print_ones(fabric, 2.0, wrong)
        quiet = await print_ones(fabric, seconds, wrong)
        ended = await share(fabric, seconds)
        async with flood(fabric, SLEEP):
            beside = await print_ones(fabric, seconds, wrong)
        async with flood(fabric, "1"):
            await asyncio.sleep(1.0)
        async with flood(fabric, SLEEP):
            after_quick = await print_ones(fabric, seconds, wrong)
    ratio = ratio_of(ended)
    stretches = [
        ratio_of(ended[at : at + SOME_DOZENS]) for at in range(0, len(ended) - SOME_DOZENS, SOME_DOZENS)
    ]
    alone_ms, beside_ms, after_ms = (latency_ms(seen)["p99"] for seen in (quiet, beside, after_quick))
    result = {
        "seconds": seconds,
        "ended": Counter(ended),
        "stretches": {
            "programs": SOME_DOZENS,
            "number": len(stretches),
            "least": round(min(stretches, default=ratio), 3),
            "median": round(median(stretches or [ratio]), 3),
            "most": round(max(stretches, default=ratio), 3),
        },
        "quiet": latency_ms(quiet) | {"calls": len(quiet)},
        "beside": latency_ms(beside) | {"calls": len(beside)},
        "after_quick": latency_ms(after_quick) | {"calls": len(after_quick)},
        "wrong": wrong,
    }
    bars = [
        bar("share of the heavier at least", round(ratio, 3), 1.9, at_most=False),
        bar("share of the heavier at most", round(ratio, 3), 2.1, at_most=True),
        bar("p99 beside a flood, more than alone, ms", beside_ms - alone_ms, 1000 * SLICE_S, at_most=True),
        bar("the same after quick programs, ms", after_ms - alone_ms, 1000 * SLICE_S, at_most=True),
        bar("failures", wrong.total(), 0, at_most=True),
    ]
    return result, bars


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the four phases")
    default = Path(__file__).parent / "results" / "fabric_shares.json"
    parser.add_argument("--out", type=Path, default=default, help="where the JSON goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rocstar-bench-") as folder:
        nodes = Nodes(Path(folder))
        try:
            nodes.start_redis()
            for _ in range(2):
                nodes.start_worker()
            result, bars = uvloop.run(measure(nodes, options.seconds))
        finally:
            nodes.stop()
    return finish("fabric_shares", {"command": command(sys.argv), **result}, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
