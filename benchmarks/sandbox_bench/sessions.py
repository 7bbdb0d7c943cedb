"""CPU of a cell of a session, through the pool and through HTTP."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from typing import Any

from report import claim, finish
from sandbox_bench.load import latency_ms
from sandbox_bench.rocstar_service import HttpSession, service

from rocstar.sandbox import proctree
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import Session

BAR_MS = 0.2
CELLS = 3000
SESSIONS = 16
WARM_UP = 100

Run = Callable[[str], Awaitable[str | None]]
"""Runs a cell of one session and returns its output."""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("sessions", help="CPU per session cell, through the pool and HTTP")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=CELLS, help="cells per round and row")


async def in_pool(session: Session, code: str) -> str:
    return (await session.run(code)).stdout


async def _cells(name: str, cells: list[Run], count: int, roots: list[int]) -> dict[str, Any]:
    """`count` cells spread over the given sessions, each session one cell at a time, all sessions at once."""
    latencies: list[float] = []
    wrong = 0

    async def lane(cell: Run, first: int) -> None:
        nonlocal wrong
        for number in range(first, first + count // len(cells)):
            begun = time.perf_counter()
            wrong += (await cell(f"print({number})") or "").strip() != str(number)
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


async def _pool_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows, tree = [], [os.getpid()]
    async with SandboxPool(("stdlib",)) as pool:
        sessions = [await pool.open_session() for _ in range(SESSIONS)]
        cells = [partial(in_pool, session) for session in sessions]
        await _cells("warm-up", cells, WARM_UP * SESSIONS, tree)
        for _ in range(options.rounds):
            rows.append(await _cells("pool, one session", cells[:1], options.cells, tree))
            rows.append(await _cells(f"pool, {SESSIONS} at once", cells, options.cells, tree))
        for session in sessions:
            await session.close()
    return rows


async def _http_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with service(*options.serve_option) as server:
        async with server.client() as client:
            cells = [(await HttpSession.open(client)).run for _ in range(SESSIONS)]
            await _cells("warm-up", cells, WARM_UP * SESSIONS, [server.pid])
            for _ in range(options.rounds):
                rows.append(await _cells("HTTP, one session", cells[:1], options.cells, [server.pid]))
                rows.append(await _cells(f"HTTP, {SESSIONS} at once", cells, options.cells, [server.pid]))
    return rows


def _medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged = []
    for name in dict.fromkeys(row["row"] for row in rows):
        mine = [row for row in rows if row["row"] == name]
        one: dict[str, Any] = {"row": name, "wrong": sum(row["wrong"] for row in mine)}
        for field in ("cpu_ms_per_cell", "client_cpu_ms_per_cell", "cells_per_s"):
            one[field] = round(median([row[field] for row in mine]), 4)
        one["latency_ms"] = {
            share: round(median([row["latency_ms"][share] for row in mine]), 4) for share in ("p50", "p99")
        }
        merged.append(one)
    return merged


async def run(options: argparse.Namespace) -> int:
    rows = _medians(await _pool_rows(options) + await _http_rows(options))
    for row in rows:
        print(row)
    cost = {row["row"]: row["cpu_ms_per_cell"] for row in rows}
    claims = [
        claim("CPU of a session cell through the pool", cost["pool, one session"], "ms", at_most=BAR_MS),
        claim("CPU of a session cell through HTTP", cost["HTTP, one session"], "ms", at_most=BAR_MS),
        claim("wrong answers of session cells", sum(row["wrong"] for row in rows), "cells", at_most=0),
    ]
    note = "pool rows count this process, the supervisor and all children; HTTP rows the service's tree"
    return finish("sandbox_sessions", {"counted": note, "rows": rows}, claims, options.out)
