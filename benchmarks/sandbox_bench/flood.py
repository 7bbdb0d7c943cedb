"""45,000 calls in flight at once: one asyncio client, batches of 64, all sent without waiting for answers.

    703 requests of 64 and one of 8, together  ->  service  ->  every answer checked against its own nonce
    gauge every 0.25 s, memory every second    ->  peak in flight, peak memory
    before and after it: the same programs by bare forks of warm interpreters, one on each core (forks.py)

Memory is the largest sum seen of the client's resident set and the proportional set sizes of the service's
tree.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hogs import cores
from report import claim, finish
from sandbox_bench.forks import cheapest, forks, of_forks
from sandbox_bench.http_client import Client, HttpError
from sandbox_bench.programs import MAKERS, Program, nonced
from sandbox_bench.rocstar_service import Service, service

from rocstar.sandbox import proctree
from rocstar.sandbox.bench import percentile

CALLS = 45_000
BATCH = 64
TIMEOUT_S = 600.0
GAUGE = "rocstar_sandbox_in_flight"
IN_FLIGHT_SHARE = 40_000 / 45_000
MEMORY_BAR_GB, RATE_BAR, FORKS_BAR = 2.5, 700.0, 0.9
FORKED_CALLS = 4096


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("flood", help="45,000 calls in flight through one client")
    parser.add_argument("--calls", type=int, default=CALLS)


@dataclass(eq=False)
class Flood:
    """State of one flood: answers by kind, gauge and memory over time."""

    server: Service
    statuses: Counter[int] = field(default_factory=Counter)
    right: int = 0
    failures: list[str] = field(default_factory=list)
    finished_s: list[float] = field(default_factory=list)
    gauge: list[tuple[float, float]] = field(default_factory=list)
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    started: float = 0.0

    def now(self) -> float:
        return time.perf_counter() - self.started

    async def send(self, client: Client, programs: list[Program]) -> None:
        requests = [{"code": program.code} for program in programs]
        try:
            answer = await client.post("/v1/batch", {"requests": requests}, timeout_s=TIMEOUT_S)
        except (HttpError, OSError, TimeoutError) as error:
            self.failures.append(repr(error)[:200])
            return
        self.statuses[answer.status] += 1
        if answer.status == 200:
            results = answer.json()["results"]
            pairs = zip(programs, results, strict=True)
            self.right += sum(
                result.get("status") == "ok" and program.right(result["stdout"]) for program, result in pairs
            )
        else:
            self.failures.append(f"{answer.status}: {answer.body[:200]!r}")
        self.finished_s.append(self.now())

    async def watch_gauge(self) -> None:
        async with self.server.client() as client:
            while True:
                text = (await client.get("/metrics")).body.decode()
                self.gauge.append((self.now(), gauge_value(text)))
                await asyncio.sleep(0.25)

    async def watch_memory(self) -> None:
        while True:
            tree = tree_pss_bytes([self.server.pid])
            self.memory.append((self.now(), tree, status_kib(os.getpid(), "VmRSS") * 1024))
            await asyncio.sleep(1.0)


def status_kib(pid: int, field: str, file: str = "status") -> int:
    """Return a field of /proc/PID/status in KiB (`VmRSS`, `VmHWM`), or 0 for a zombie."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def pss_kib(pid: int) -> int:
    """Return the proportional set size in KiB, in which shared pages are divided among their processes, or
    the resident set size, which is never smaller, if the kernel does not report it."""
    with suppress(PermissionError):
        if pss := status_kib(pid, "Pss", "smaps_rollup"):
            return pss
    return status_kib(pid, "VmRSS")


def tree_pss_bytes(roots: Iterable[int]) -> int:
    """Return the memory of the live roots and all their descendants."""
    total = 0
    for process in proctree.tree(roots):
        try:
            total += pss_kib(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total * 1024


def gauge_value(text: str) -> float:
    """The sum of the in-flight gauge over its labels, from the Prometheus text format."""
    lines = [line for line in text.splitlines() if line.startswith(GAUGE)]
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line[len(GAUGE)] in " {"]
    if not values:
        raise ValueError(f"/metrics has no {GAUGE}")
    return sum(values)


async def run(options: argparse.Namespace) -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a socket per request in flight
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    make = MAKERS["print"]
    batches = [
        [make(10**6 + nonce) for nonce in range(first, min(first + BATCH, options.calls))]
        for first in range(0, options.calls, BATCH)
    ]
    before = await _forks_per_s()
    with service("--max-calls", str(options.calls + BATCH), *options.serve_option) as server:
        flood = Flood(server)
        async with server.client() as client:
            await client.post("/v1/batch", {"requests": [{"code": "print(0)"}] * BATCH})
            cpu, own = proctree.cpu_s([server.pid]), time.process_time()
            flood.started = time.perf_counter()
            watchers = [asyncio.create_task(flood.watch_gauge()), asyncio.create_task(flood.watch_memory())]
            async with asyncio.TaskGroup() as group:
                for batch in batches:
                    group.create_task(flood.send(client, batch))
            seconds = flood.now()
            for watcher in watchers:
                watcher.cancel()
            await asyncio.wait(watchers)
        cpu, own = proctree.cpu_s([server.pid]) - cpu, time.process_time() - own
    rates = {"calls_per_s": options.calls / seconds, "bare_forks_per_s": median([before, await _forks_per_s()])}
    costs = {"service_cpu_ms_per_call": 1e3 * cpu / options.calls, "client_cpu_ms_per_call": 1e3 * own / options.calls}
    return _report(options, flood, rates | costs)


async def _forks_per_s() -> float:
    """Calls per second of bare forks on the same cores: unconfined, without HTTP, no answer that waits."""
    programs = nonced("print")
    warm, _ = await cheapest("print", programs, FORKED_CALLS // 8)
    async with forks(warm, len(cores())) as some:
        return (await of_forks(some, programs, FORKED_CALLS)).calls_per_s


def _report(options: argparse.Namespace, flood: Flood, figures: dict[str, float]) -> int:
    in_flight = max(value for _, value in flood.gauge)
    peak = max(tree + client for _, tree, client in flood.memory)
    rate = figures["calls_per_s"]
    result: dict[str, Any] = {
        "calls": options.calls,
        "http_statuses": dict(flood.statuses),
        "failures": flood.failures[:20],
        **{name: round(value, 4) for name, value in figures.items()},
        "peak_tree_pss_bytes": max(tree for _, tree, _ in flood.memory),
        "first_answer_s": round(min(flood.finished_s), 3),
        "request_p50_s": round(percentile(flood.finished_s, 0.5), 2),
    }
    print(result)
    refused = sum(count for status, count in flood.statuses.items() if status != 200) + len(flood.failures)
    claims = [
        claim("calls of the flood that were answered right", flood.right, "calls", at_least=options.calls),
        claim("requests of the flood that were refused or failed", refused, "requests", at_most=0),
        claim(
            "calls in flight at once at the peak of the flood",
            in_flight, "calls", at_least=round(IN_FLIGHT_SHARE * options.calls),
        ),
        claim("peak memory of service and client in the flood", peak / 1e9, "GB", at_most=MEMORY_BAR_GB),
        claim("calls per second of the flood", rate, "calls/s", at_least=RATE_BAR),
        claim(
            "rate of the flood over that of bare forks on the same cores",
            rate / figures["bare_forks_per_s"], at_least=FORKS_BAR,
        ),
    ]  # fmt: skip
    return finish("sandbox_flood", result, claims, options.out)
