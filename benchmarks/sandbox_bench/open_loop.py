"""Latency under load that does not wait for answers: Poisson arrivals at shares of the measured saturation.

    arrival times (drawn beforehand) -> a task at each time -> answer       latency = answer - arrival time

Latency counts from the scheduled arrival, so a client or service that falls behind is not excused.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandbox_bench.http_client import Client
from sandbox_bench.load import Load, drive, in_batches, summary
from sandbox_bench.programs import Program, nonced
from sandbox_bench.report import bar, finish
from sandbox_bench.rocstar_service import Service, native_batch, native_run, service
from sandbox_bench.stats import cores_needed, latency_ms, median, percentile, poisson_arrivals

from rocstar.sandbox import proctree
from rocstar.sandbox.bench import table

SATURATING_LANES = (8, 32)
BATCH = 64
P50_BAR_MS, P99_BAR_MS = 10.0, 50.0


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("open-loop", help="latency at shares of saturation, Poisson arrivals")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals per row")
    parser.add_argument("--saturate-s", type=float, default=5.0, help="of closed loop per measurement")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.25, 0.5, 0.75])
    parser.add_argument("--plot", type=Path, help="write the latency curves to this PNG or SVG file")


async def _saturation(server: Service, programs: Any, size: int, lanes: int, seconds: float) -> Load:
    """Calls per second in closed loop: single calls (size 1) or batches."""
    async with server.client() as client:
        until = time.perf_counter() + seconds

        async def send(batch: Sequence[Program]) -> list[str | None]:
            if size == 1:
                return [await native_run(client, batch[0])]
            return await native_batch(client, batch)

        def batches() -> Any:
            for batch in in_batches(programs, 10**9, size):
                if time.perf_counter() >= until:
                    return
                yield batch

        return await drive(send, batches(), lanes=lanes, roots=[server.pid])


async def _open_loop(
    server: Service, programs: Any, size: int, rate: float, seconds: float
) -> dict[str, Any]:
    """Arrivals of single calls or batches such that `rate` calls per second come in."""
    arrivals = poisson_arrivals(rate / size, max(2, int(rate / size * seconds)), seed=17)
    latencies: list[float] = []
    lags: list[float] = []
    wrong = 0

    async def one(client: Client, programs: Sequence[Program], due: float) -> None:
        nonlocal wrong
        lags.append(time.perf_counter() - due)
        outputs = (
            [await native_run(client, programs[0])] if size == 1 else await native_batch(client, programs)
        )
        latencies.append(time.perf_counter() - due)
        wrong += sum(not program.right(out) for program, out in zip(programs, outputs, strict=True))

    cpu = proctree.cpu_s([server.pid])
    async with server.client() as client, asyncio.TaskGroup() as group:
        start = time.perf_counter()
        for offset in arrivals:
            due = start + offset
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            group.create_task(one(client, [next(programs) for _ in range(size)], due))
    elapsed = time.perf_counter() - start
    calls = len(arrivals) * size
    return {
        "calls": calls,
        "wrong": wrong,
        "offered_per_s": round(rate, 1),
        "finished_per_s": round(calls / elapsed, 1),
        "cpu_ms_per_call": round(1e3 * (proctree.cpu_s([server.pid]) - cpu) / calls, 4),
        "latency_ms": latency_ms(latencies),
        "client_lag_ms_p99": round(1e3 * percentile(lags, 0.99), 3),
        "latencies_s": latencies,
    }


async def run(options: argparse.Namespace) -> int:
    programs = nonced("print")
    rows: list[dict[str, Any]] = []
    saturations: dict[str, Any] = {}
    with service(*options.serve_option) as server:
        await _saturation(server, programs, BATCH, 2, 1.0)
        for name, size in (("single calls", 1), (f"batches of {BATCH}", BATCH)):
            lanes = SATURATING_LANES if size == 1 else (2, 4)
            tries = [await _saturation(server, programs, size, n, options.saturate_s) for n in lanes]
            rate = max(load.calls_per_s for load in tries)
            saturations[name] = {"calls_per_s": round(rate, 1), **summary(tries), "in_flight": lanes}
            for share in options.shares if size == 1 else [0.5]:
                row = await _open_loop(server, programs, size, rate * share, options.seconds)
                rows.append({"arrivals": name, "share": share, **row})
    return _report(options, rows, saturations)


def _report(options: argparse.Namespace, rows: list[dict[str, Any]], saturations: dict[str, Any]) -> int:
    for name, load in saturations.items():
        print(f"saturation, {name}: {load['calls_per_s']:.0f} calls/s")
    headings = (
        "arrivals",
        "share",
        "calls/s",
        "wrong",
        "CPU ms/call",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "max ms",
    )
    lines = []
    for row in rows:
        head = [row[name] for name in ("arrivals", "share", "offered_per_s", "wrong", "cpu_ms_per_call")]
        lines.append([*head, *(row["latency_ms"][name] for name in ("p50", "p95", "p99", "max"))])
    print(table(headings, lines), end="\n\n")
    batch_cpu = median([row["cpu_ms_per_call"] for row in rows if row["arrivals"] != "single calls"])
    single_cpu = median([row["cpu_ms_per_call"] for row in rows if row["arrivals"] == "single calls"])
    cores = {
        "print, batches of 64": round(cores_needed(batch_cpu / 1e3), 1),
        "print, single calls": round(cores_needed(single_cpu / 1e3), 1),
    }
    print(table(("45,000 calls within 0.3 s", "cores"), cores.items()), end="\n\n")
    half = next((row for row in rows if row["share"] == 0.5), rows[0])
    bars = [
        bar("p50 in ms at half of saturation", half["latency_ms"]["p50"], P50_BAR_MS, at_most=True),
        bar("p99 in ms at half of saturation", half["latency_ms"]["p99"], P99_BAR_MS, at_most=True),
        bar("wrong answers", sum(row["wrong"] for row in rows), 0, at_most=True),
    ]
    if options.plot:
        _plot(rows, options.plot)
    for row in rows:
        row["latency_quantiles_ms"] = _quantiles(row.pop("latencies_s"))
    result = {"saturation": saturations, "rows": rows, "cores_for_45k_in_0.3s": cores}
    return finish("open-loop", result, bars, options.out)


def _quantiles(latencies: Sequence[float]) -> dict[str, float]:
    shares = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
    return {str(share): round(1e3 * percentile(latencies, share), 3) for share in shares}


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for row in rows:
        ordered = sorted(1e3 * value for value in row["latencies_s"])
        shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
        axes.plot(ordered, shares, label=f"{row['arrivals']}, {row['share']:.0%} of saturation")
    axes.set_xscale("log")
    axes.set_xlabel("latency from scheduled arrival (ms)")
    axes.set_ylabel("share of requests answered")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
