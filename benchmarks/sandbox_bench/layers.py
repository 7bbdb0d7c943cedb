"""What each isolation layer adds to `print(1)`: pools with one layer left out, run in turn."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import AsyncExitStack
from typing import Any

from sandbox_bench.report import bar, finish
from sandbox_bench.stats import median

from rocstar.sandbox import proctree
from rocstar.sandbox.bench import table
from rocstar.sandbox.pool.pool import LAYERS, SandboxPool
from rocstar.sandbox.types import ExecRequest

CALLS = 512
BATCH = 64


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("layers", help="CPU per call with single isolation layers left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=CALLS, help="calls per round and variant")


async def _cost_us(pool: SandboxPool, calls: int) -> tuple[float, int]:
    """CPU in microseconds per call of everything but this process, and the number of wrong answers."""
    everyone = [os.getpid()]
    before, own, wrong = proctree.cpu_s(everyone), time.process_time(), 0
    for _ in range(calls // BATCH):
        requests = [ExecRequest(code="print(1)")] * BATCH
        async for _, outcome in pool.run_batch(requests):
            wrong += getattr(outcome, "stdout", "") != "1\n"
    used = proctree.cpu_s(everyone) - before - (time.process_time() - own)
    return 1e6 * used / calls, wrong


async def run(options: argparse.Namespace) -> int:
    variants: dict[str, tuple[str, ...]] = {"all layers": ()}
    variants |= {f"without {layer}": (layer,) for layer in LAYERS}
    variants["no layer at all"] = tuple(LAYERS)
    costs: dict[str, list[float]] = {name: [] for name in variants}
    isolation: dict[str, str] = {}
    wrong = 0
    async with AsyncExitStack() as stack:
        pools = {}
        for name, left_out in variants.items():
            pool = SandboxPool(("stdlib",), without=left_out, allow_no_isolation=bool(left_out))
            pools[name] = await stack.enter_async_context(pool)
            isolation[name] = (await pool.run(ExecRequest(code="print(1)"))).isolation
            await _cost_us(pool, BATCH)
        for _ in range(options.rounds):
            for name, pool in pools.items():
                cost, bad = await _cost_us(pool, options.calls)
                costs[name].append(cost)
                wrong += bad
    rows: list[dict[str, Any]] = []
    for name, each in costs.items():
        saved = [full - one for full, one in zip(costs["all layers"], each, strict=True)]
        rows.append(
            {
                "variant": name,
                "cpu_us_per_call": round(median(each), 1),
                "saved_us_per_call": round(median(saved), 1),
                "saved_us_rounds": [round(value, 1) for value in saved],
                "active": isolation[name],
            }
        )
    headings = ("variant", "CPU us/call", "saved us", "active layers")
    fields = ("variant", "cpu_us_per_call", "saved_us_per_call", "active")
    print(table(headings, [[row[field] for field in fields] for row in rows]), end="\n\n")
    note = "CPU of supervisor, zygotes and children; saved = all layers minus the variant, in the same round"
    bars = [bar("wrong answers", wrong, 0, at_most=True)]
    return finish("layers", {"counted": note, "rows": rows}, bars, options.out)
