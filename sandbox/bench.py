"""`rocstar sandbox bench`: throughput and latency of this machine's sandbox, in about twenty seconds.

    rows, one after the other:  pool.run_batch, 64 calls at a time, 2 batches in flight   (throughput)
                                pool.run, one call at a time                              (latency)
                                one session, one cell at a time

CPU per call is the CPU of this process and all its descendants, so it includes the caller. Each program
contains a unique number, and every answer is checked.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rocstar.sandbox import proctree
from rocstar.sandbox.extras import installed_flavours, left_out
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError, SessionSandbox

BATCH = 64
BATCHES_IN_FLIGHT = 2
WARM_UP_CALLS = 32

PROGRAMS = {
    "print": ("stdlib", "print({nonce})", "{nonce}"),
    "sympy integral": (
        "numeric",
        "from sympy import symbols, integrate\nx = symbols('x')\nprint(integrate(x**2, x), {nonce})",
        "x**3/3 {nonce}",
    ),
}
"""Flavour, code and expected output by name; {nonce} is the number of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One line of the table. cpu_ms_per_call: of the whole process tree. p50_ms, p99_ms: latencies of single
    calls, None for batches."""

    name: str
    calls: int
    wrong: int
    calls_per_s: float
    cpu_ms_per_call: float
    p50_ms: float | None = None
    p99_ms: float | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("a percentile needs at least one value")
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}. It must be in (0, 1].")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a text table: the first column left-aligned, the others right-aligned; None is a dash."""
    lines = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    text = []
    for number, line in enumerate(lines):
        cells = [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        text.append("  ".join(cells).rstrip())
        if number == 0:
            text.append("  ".join("-" * width for width in widths))
    return "\n".join(text)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def requests(name: str, first: int, count: int) -> list[tuple[ExecRequest, str]]:
    """Return programs `first` to `first + count - 1` of one kind, with their expected output."""
    flavour, code, expected = PROGRAMS[name]
    return [
        (ExecRequest(code=code.format(nonce=n), flavour=flavour), expected.format(nonce=n))
        for n in range(first, first + count)
    ]


def is_right(outcome: ExecResult | SandboxError, expected: str) -> bool:
    return isinstance(outcome, ExecResult) and outcome.stdout.strip() == expected


async def run_benchmark(
    name: str, seconds: float, call: Callable[[int], Awaitable[int]], *, per_call: int, lanes: int
) -> BenchRow:
    """Repeat `call(n)`, which returns the number of wrong ones of its `per_call` answers, in `lanes`
    concurrent loops for `seconds`; n grows by `per_call` and is never reused."""
    numbers = iter(range(10**6, 10**12, per_call))
    for _ in range(max(1, WARM_UP_CALLS // per_call)):
        await call(next(numbers))
    latencies: list[float] = []
    wrong = 0
    cpu_before, started = proctree.cpu_s([os.getpid()]), time.perf_counter()

    async def lane() -> None:
        nonlocal wrong
        while True:  # at least once: on a busy machine the time may be over before the first call
            begun = time.perf_counter()
            found = await call(next(numbers))  # apart: `wrong += await` loses counts of other lanes
            wrong += found
            latencies.append(time.perf_counter() - begun)
            if time.perf_counter() - started >= seconds:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(lanes):
            group.create_task(lane())
    elapsed = time.perf_counter() - started
    cpu = proctree.cpu_s([os.getpid()]) - cpu_before
    calls = len(latencies) * per_call
    single = per_call == 1
    return BenchRow(
        name=name,
        calls=calls,
        wrong=wrong,
        calls_per_s=calls / elapsed,
        cpu_ms_per_call=1e3 * cpu / calls,
        p50_ms=1e3 * percentile(latencies, 0.5) if single else None,
        p99_ms=1e3 * percentile(latencies, 0.99) if single else None,
    )


async def bench(pool: SessionSandbox, names: Sequence[str], seconds: float) -> list[BenchRow]:
    """Measure all rows for the programs `names`, in `seconds` together."""
    share = seconds / (2 * len(names) + 1)
    rows = []
    for name in names:

        async def batch(first: int, name: str = name) -> int:
            wanted = requests(name, first, BATCH)
            outcomes: AsyncIterator[tuple[int, ExecResult | SandboxError]]
            outcomes = pool.run_batch([request for request, _ in wanted])
            return sum([not is_right(outcome, wanted[index][1]) async for index, outcome in outcomes])

        async def single(first: int, name: str = name) -> int:
            ((request, expected),) = requests(name, first, 1)
            return int(not is_right(await pool.run(request), expected))

        many = f"{name}, batches of {BATCH}"
        rows.append(await run_benchmark(many, share, batch, per_call=BATCH, lanes=BATCHES_IN_FLIGHT))
        rows.append(await run_benchmark(f"{name}, one at a time", share, single, per_call=1, lanes=1))
    session = await pool.open_session()

    async def cell(nonce: int) -> int:
        return int(not is_right(await session.run(f"print({nonce})"), str(nonce)))

    try:
        rows.append(await run_benchmark("session cell", share, cell, per_call=1, lanes=1))
    finally:
        await session.close()
    return rows


def run(options: argparse.Namespace) -> int:
    """Run the verb. Return 1 if an answer was wrong, else 0."""
    flavour_of = {name: flavour for name, (flavour, *_) in PROGRAMS.items()}
    if options.stdlib_only:
        flavour_of = {"print": "stdlib"}
    for line in left_out(list(flavour_of.values())):
        print(f"rocstar sandbox bench: {line}", file=sys.stderr)
    names = [name for name, flavour in flavour_of.items() if flavour in installed_flavours()]
    rows, about = asyncio.run(_with_pool(names, options.seconds))
    if options.json:
        print(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        headings = ("", "calls", "wrong", "calls/s", "CPU ms/call", "p50 ms", "p99 ms")
        print(table(headings, [tuple(asdict(row).values()) for row in rows]))
        print(f"{about['cores']} cores, isolation tier {about['tier']}: {about['isolation']}")
    return int(any(row.wrong for row in rows))


async def _with_pool(names: Sequence[str], seconds: float) -> tuple[list[BenchRow], dict[str, Any]]:
    # The pool imports asyncio's sockets, which --help does not need.
    from rocstar.sandbox.pool.pool import SandboxPool

    flavours = list(dict.fromkeys(["stdlib", *(PROGRAMS[name][0] for name in names)]))
    async with SandboxPool(flavours) as pool:
        result = await pool.run(ExecRequest(code="print(1)"))
        about = {"cores": len(os.sched_getaffinity(0)), "tier": result.tier, "isolation": result.isolation}
        return await bench(pool, names, seconds), about
