"""The Model Context Protocol from its SDK's own client: 10 sessions at a time, 100 cells, a figure.

    python benchmarks/mcp_cells.py [--out FILE]

Each session counts on in a variable of its own, over standard input and output of `rocstar sandbox mcp`
and over HTTP; a value that another session's cell would have is wrong. A figure of matplotlib is right if it
is a PNG with a size. Needs the extras `mcp` and `plot`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client
from sandbox_bench.processes import free_port, running, wait_for_port
from sandbox_bench.report import ROOT, bar, finish
from sandbox_bench.stats import latency_ms

SESSIONS: Final = 10
CELLS: Final = 10
TIMEOUT_S: Final = 120.0
FIGURE: Final = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 2])\nplt.show()"
PNG: Final = b"\x89PNG\r\n\x1a\n"
SERVER: Final = ("sandbox", "mcp", "--flavours", "stdlib,plot", "--allow-shared-user")


@asynccontextmanager
async def over_pipes() -> AsyncIterator[mcp.Client]:
    program = Path(sys.executable).with_name("rocstar")
    async with mcp.Client(mcp.StdioServerParameters(command=str(program), args=list(SERVER))) as client:
        yield client


@asynccontextmanager
async def over_http() -> AsyncIterator[mcp.Client]:
    port = free_port()
    command = [Path(sys.executable).with_name("rocstar"), *SERVER, "--http", "--port", str(port)]
    with running(command, log=Path(os.devnull)) as process:
        await asyncio.to_thread(wait_for_port, port, process)
        transport = streamable_http_client(
            f"http://127.0.0.1:{port}/mcp", http_client=httpx2.AsyncClient(timeout=TIMEOUT_S)
        )
        async with mcp.Client(transport) as client:
            yield client


async def cells_of(client: mcp.Client, number: int, seconds: list[float]) -> int:
    """The cells of one session, one after the other; how many had a wrong value."""
    wrong, session = 0, ""
    for cell in range(CELLS):
        asked = {"code": f"x = {number}\nx"}
        if session:
            asked = {"code": "x += 10\nx", "session": session}
        began = time.perf_counter()
        answer = await client.call_tool("run_cell", asked)
        seconds.append(time.perf_counter() - began)
        told: dict[str, Any] = answer.structured_content or {}
        session = session or told["session"]
        wrong += told.get("value") != str(number + 10 * cell)
    return wrong


async def picture(client: mcp.Client) -> tuple[int, int] | None:
    """Width and height of the figure in pixels, by the head of its PNG."""
    answer = await client.call_tool("run_python", {"code": FIGURE, "wall_s": 30})
    images = [part for part in answer.content if part.type == "image"]
    if len(images) != 1 or images[0].mime_type != "image/png":
        return None
    data = base64.b64decode(images[0].data)
    if not data.startswith(PNG):
        return None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


async def tried(opened: Any) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_S), opened as client:
        size = await picture(client)  # the first call waits until the interpreters are warm
        seconds: list[float] = []
        began = time.perf_counter()
        wrong = await asyncio.gather(*(cells_of(client, number, seconds) for number in range(SESSIONS)))
        whole = time.perf_counter() - began
    return {
        "sessions": SESSIONS,
        "cells": len(seconds),
        "wrong": sum(wrong),
        "picture": size,
        "cells_per_s": round(len(seconds) / whole, 1),
        "latency_ms": latency_ms(seconds),
    }


async def both() -> dict[str, dict[str, Any]]:
    return {"stdio": await tried(over_pipes()), "http": await tried(over_http())}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "mcp_cells.json")
    options = parser.parse_args(arguments)
    result = asyncio.run(both())
    bars = []
    for name, one in result.items():
        bars.append(bar(f"{name}: right cells", one["cells"] - one["wrong"], SESSIONS * CELLS, at_most=False))
        bars.append(bar(f"{name}: a figure is a PNG", int(one["picture"] is not None), 1, at_most=False))
    return finish("mcp_cells", result, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
