"""What a cell of a session costs, through the pool and through HTTP, and what a branch costs."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from report import claim, finish
from sandbox_bench.load import latency_ms
from sandbox_bench.rocstar_service import HttpSession, service

from rocstar.sandbox import proctree
from rocstar.sandbox.bench import table
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import Session

BAR_MS = 0.2
CELLS = 3000
SESSIONS = 16
BRANCHES = 100
WARM_UP = 100

Cell = Callable[[int], Awaitable[bool]]
"""Runs cell number n of one session and says whether its answer was right."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("sessions", help="CPU per session cell, through the pool and HTTP")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=CELLS, help="cells per round and row")


def of_session(session: Session) -> Cell:
    async def cell(number: int) -> bool:
        return (await session.run(f"print({number})")).stdout.strip() == str(number)

    return cell


def of_http(session: HttpSession) -> Cell:
    async def cell(number: int) -> bool:
        return (await session.run(f"print({number})") or "").strip() == str(number)

    return cell


async def _cells(name: str, cells: list[Cell], count: int, roots: list[int]) -> dict[str, Any]:
    """`count` cells spread over the given sessions, each session one cell at a time, all sessions at once."""
    latencies: list[float] = []
    wrong = 0

    async def lane(cell: Cell, first: int) -> None:
        nonlocal wrong
        for number in range(first, first + count // len(cells)):
            begun = time.perf_counter()
            wrong += not await cell(number)
            latencies.append(time.perf_counter() - begun)

    cpu, own, started = proctree.cpu_s(roots), time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for index, cell in enumerate(cells):
            group.create_task(lane(cell, (index + 1) * 10**6))
    seconds = time.perf_counter() - started
    used, client = proctree.cpu_s(roots) - cpu, time.process_time() - own
    done = len(latencies)
    return {
        "row": name,
        "cells": done,
        "wrong": wrong,
        "cpu_ms_per_cell": 1e3 * used / done,
        "client_cpu_ms_per_cell": 1e3 * client / done,
        "cells_per_s": done / seconds,
        "latency_ms": latency_ms(latencies),
    }


async def _timed(name: str, action: Callable[[], Awaitable[object]], count: int) -> dict[str, Any]:
    """CPU of this tree and wall time per action, one after the other."""
    latencies = []
    cpu = proctree.cpu_s([os.getpid()])
    for _ in range(count):
        begun = time.perf_counter()
        await action()
        latencies.append(time.perf_counter() - begun)
    used = proctree.cpu_s([os.getpid()]) - cpu
    return {"row": name, "count": count, "cpu_ms": 1e3 * used / count, "latency_ms": latency_ms(latencies)}


async def _pool_rows(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    async with SandboxPool(("stdlib",)) as pool:
        sessions = [await pool.open_session() for _ in range(SESSIONS)]
        cells = [of_session(session) for session in sessions]
        await _cells("warm-up", cells, WARM_UP * SESSIONS, [os.getpid()])
        rows = []
        for _ in range(options.rounds):
            rows.append(await _cells("pool, one session", cells[:1], options.cells, [os.getpid()]))
            rows.append(await _cells(f"pool, {SESSIONS} at once", cells, options.cells, [os.getpid()]))

        async def branch() -> None:
            await (await sessions[0].branch()).close()

        async def opened() -> None:
            await (await pool.open_session()).close()

        others = [
            await _timed("branch and close", branch, BRANCHES),
            await _timed("open and close", opened, BRANCHES),
        ]
        for session in sessions:
            await session.close()
        return rows, others


async def _http_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with service(*options.serve_option) as server:
        async with server.client() as client:
            cells = [of_http(await HttpSession.open(client)) for _ in range(SESSIONS)]
            await _cells("warm-up", cells, WARM_UP * SESSIONS, [server.pid])
            for _ in range(options.rounds):
                rows.append(await _cells("HTTP, one session", cells[:1], options.cells, [server.pid]))
                rows.append(await _cells(f"HTTP, {SESSIONS} at once", cells, options.cells, [server.pid]))
    return rows


def _medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged = []
    for name in dict.fromkeys(row["row"] for row in rows):
        mine = [row for row in rows if row["row"] == name]
        one: dict[str, Any] = {"row": name, "cells": sum(row["cells"] for row in mine)}
        one["wrong"] = sum(row["wrong"] for row in mine)
        for field in ("cpu_ms_per_cell", "client_cpu_ms_per_cell", "cells_per_s"):
            one[field] = round(median([row[field] for row in mine]), 4)
            one[f"{field}_rounds"] = [round(row[field], 4) for row in mine]
        one["latency_ms"] = {
            share: round(median([row["latency_ms"][share] for row in mine]), 4)
            for share in ("p50", "p95", "p99")
        }
        merged.append(one)
    return merged


async def run(options: argparse.Namespace) -> int:
    pool_rows, others = await _pool_rows(options)
    rows = _medians(pool_rows + await _http_rows(options))
    headings = ("", "cells", "wrong", "CPU ms/cell", "of it client", "cells/s", "p50 ms", "p99 ms")
    print(table(headings, [_line(row) for row in rows]), end="\n\n")
    lines = [[row["row"], row["count"], row["cpu_ms"], row["latency_ms"]["p50"]] for row in others]
    print(table(("", "times", "CPU ms", "p50 ms"), lines), end="\n\n")
    cost = {row["row"]: row["cpu_ms_per_cell"] for row in rows}
    claims = [
        claim("CPU of a session cell through the pool", cost["pool, one session"], "ms", at_most=BAR_MS),
        claim("CPU of a session cell through HTTP", cost["HTTP, one session"], "ms", at_most=BAR_MS),
        claim("wrong answers of session cells", sum(row["wrong"] for row in rows), "cells", at_most=0),
    ]
    note = "pool rows count this process, the supervisor and all children; HTTP rows the service's tree"
    return finish("sandbox_sessions", {"counted": note, "rows": rows, "others": others}, claims, options.out)


def _line(row: dict[str, Any]) -> list[object]:
    # The pool's client is part of what is counted; over HTTP it is another process.
    client = row["client_cpu_ms_per_cell"] if row["row"].startswith("pool") else None
    latency = row["latency_ms"]
    head = [row["row"], row["cells"], row["wrong"], row["cpu_ms_per_cell"], client, row["cells_per_s"]]
    return [*head, latency["p50"], latency["p99"]]
