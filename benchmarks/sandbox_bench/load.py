"""Closed-loop load on a batch route and its cost: the loop of all throughput figures.

lane 1: batch -> answer -> next batch -> ...     `lanes` loops share one iterator of batches, so exactly
lane 2: batch -> answer -> ...                   that many batches are in flight until it is used up
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any

from sandbox_bench.programs import Program

from rocstar.sandbox import proctree
from rocstar.sandbox.bench import percentile

SendBatch = Callable[[Sequence[Program]], Awaitable[list[str | None]]]
"""Runs programs and returns their standard outputs in order, None for one that did not end well."""


def latency_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the largest, in milliseconds."""
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(1e3 * percentile(seconds, share), 3) for name, share in shares.items()}


@dataclass(slots=True)
class Load:
    """One run of load. cpu_s: of the measured roots' trees; latencies_s: per batch; wrong: programs
    with the output they gave instead."""

    calls: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    client_cpu_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    wrong: list[tuple[Program, str | None]] = field(default_factory=list)

    @property
    def cpu_ms_per_call(self) -> float:
        return 1e3 * self.cpu_s / self.calls

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.seconds


def in_batches(programs: Iterator[Program], calls: int, batch: int) -> Iterator[list[Program]]:
    taken = islice(programs, calls)
    while part := list(islice(taken, batch)):
        yield part


async def drive(send: SendBatch, batches: Iterator[list[Program]], *, lanes: int, roots: Sequence[int]) -> Load:
    """Sends all batches, `lanes` at a time, and checks every answer. CPU is read before and after, with
    nothing in flight."""
    load = Load()

    async def lane() -> None:
        for batch in batches:
            begun = time.perf_counter()
            outputs = await send(batch)
            load.latencies_s.append(time.perf_counter() - begun)
            load.calls += len(batch)
            if len(outputs) != len(batch):
                raise RuntimeError(f"{len(outputs)} answers to {len(batch)} programs")
            pairs = zip(batch, outputs, strict=True)
            load.wrong += [(program, out) for program, out in pairs if not program.right(out)]

    cpu, own, started = proctree.cpu_s(roots), time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(lanes):
            group.create_task(lane())
    load.seconds = time.perf_counter() - started
    load.cpu_s, load.client_cpu_s = proctree.cpu_s(roots) - cpu, time.process_time() - own
    return load


def summary(loads: Sequence[Load]) -> dict[str, Any]:
    """Rounds of the same load as one row: medians over rounds, the range of CPU, latencies over all."""
    cpu = [load.cpu_ms_per_call for load in loads]
    return {
        "calls": sum(load.calls for load in loads),
        "wrong": sum(len(load.wrong) for load in loads),
        "cpu_ms_per_call": round(median(cpu), 4),
        "cpu_ms_per_call_rounds": [round(value, 4) for value in cpu],
        "client_cpu_ms_per_call": round(median([1e3 * load.client_cpu_s / load.calls for load in loads]), 4),
        "calls_per_s": round(median([load.calls_per_s for load in loads]), 2),
        "request_latency_ms": latency_ms([value for load in loads for value in load.latencies_s]),
    }
