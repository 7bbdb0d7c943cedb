"""CPU per call of the whole service tree through the HTTP batch routes, throughput and latency."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sandbox_bench.http_client import Client
from sandbox_bench.load import Load, drive, in_batches, summary
from sandbox_bench.programs import Program, load_real, nonced, squeeze
from sandbox_bench.report import bar, finish
from sandbox_bench.rocstar_service import Service, judge_batch, native_batch, native_run, service
from sandbox_bench.stats import cores_needed

from rocstar.sandbox.bench import table

BATCH = 64
LANES = 4
CALLS = {"print": 3072, "numpy": 1024, "sympy": 768}
SINGLES = 256
PRINT_BAR_MS, SYMPY_BAR_MS = 2.0, 7.0
MATCH_BAR = 0.98

Route = Callable[[Client, Sequence[Program]], Awaitable[list[str | None]]]
ROUTES: dict[str, Route] = {"/v1/batch": native_batch, "/run/long-batch": judge_batch}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("cpu", help="CPU per call, calls/s and latency through HTTP")
    parser.add_argument("--data", type=Path, help="JSONL of real programs (llm_python_programs.jsonl)")
    parser.add_argument("--limit", type=int, help="use only the first so many real programs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of calls")


async def _round(server: Service, route: Route, programs: Iterator[Program], calls: int) -> Load:
    async with server.client() as client:

        async def send(batch: Sequence[Program]) -> list[str | None]:
            return await route(client, batch)

        return await drive(send, in_batches(programs, calls, BATCH), lanes=LANES, roots=[server.pid])


async def _singles(server: Service, programs: Iterator[Program]) -> Load:
    async with server.client() as client:

        async def send(batch: Sequence[Program]) -> list[str | None]:
            return [await native_run(client, batch[0])]

        return await drive(send, in_batches(programs, SINGLES, 1), lanes=1, roots=[server.pid])


async def run(options: argparse.Namespace) -> int:
    real = load_real(options.data, options.limit) if options.data else []
    streams = {kind: nonced(kind) for kind in CALLS}
    loads: dict[tuple[str, str], list[Load]] = {}
    singles: dict[str, list[Load]] = {}
    with service(*options.serve_option) as server:
        for kind in CALLS:
            await _round(server, native_batch, streams[kind], BATCH)
        for number in range(options.rounds):
            for kind, calls in CALLS.items():
                for name, route in ROUTES.items():
                    load = await _round(server, route, streams[kind], max(BATCH, int(calls * options.scale)))
                    loads.setdefault((kind, name), []).append(load)
                singles.setdefault(kind, []).append(await _singles(server, streams[kind]))
            if real and number == 0:
                for name, route in ROUTES.items():
                    loads["real", name] = [await _round(server, route, iter(real), len(real))]
    return _report(options, loads, singles)


def _report(
    options: argparse.Namespace, loads: dict[tuple[str, str], list[Load]], singles: dict[str, list[Load]]
) -> int:
    rows = [{"program": kind, "route": name, **summary(rounds)} for (kind, name), rounds in loads.items()]
    rows += [
        {"program": kind, "route": "/v1/run, one at a time", **summary(r)} for kind, r in singles.items()
    ]
    print(show(rows))
    native = {row["program"]: row["cpu_ms_per_call"] for row in rows if row["route"] == "/v1/batch"}
    cores = {kind: round(cores_needed(ms / 1e3), 1) for kind, ms in native.items()}
    print("\ncores needed for 45,000 calls within 0.3 s, from the CPU per call of /v1/batch:")
    print(table(("program", "cores"), cores.items()))
    wrong_nonced = sum(row["wrong"] for row in rows if row["program"] != "real")
    bars = [
        bar("print, CPU ms per call through /v1/batch", native["print"], PRINT_BAR_MS, at_most=True),
        bar("sympy, CPU ms per call through /v1/batch", native["sympy"], SYMPY_BAR_MS, at_most=True),
        bar("wrong answers to programs with a nonce", wrong_nonced, 0, at_most=True),
    ]
    result: dict[str, Any] = {"batch": BATCH, "lanes": LANES, "rows": rows, "cores_for_45k_in_0.3s": cores}
    for (kind, name), rounds in loads.items():
        if kind == "real":
            share = 1 - len(rounds[0].wrong) / rounds[0].calls
            bars.append(bar(f"real programs right through {name}", share, MATCH_BAR, at_most=False))
            result[f"real_wrong {name}"] = [_difference(*pair) for pair in rounds[0].wrong]
    return finish("cpu", result, bars, options.out)


def _difference(program: Program, output: str | None) -> dict[str, str | None]:
    shown = None if output is None else squeeze(output)[:200]
    return {"id": program.name, "expected": squeeze(program.expected)[:200], "got": shown}


def show(rows: Sequence[dict[str, Any]]) -> str:
    headings = (
        "program",
        "route",
        "calls",
        "wrong",
        "CPU ms/call",
        "calls/s",
        "request p50",
        "p95",
        "p99 ms",
    )
    lines = []
    for row in rows:
        latency = row["request_latency_ms"]
        tail = [latency["p50"], latency["p95"], latency["p99"]]
        head = [
            row[name] for name in ("program", "route", "calls", "wrong", "cpu_ms_per_call", "calls_per_s")
        ]
        lines.append([*head, *tail])
    return table(headings, lines)
