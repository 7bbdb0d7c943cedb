"""How long one tenant's large results and inputs keep the supervisor from another's.

    neighbour: opens a file again and again, of which the kernel asks the supervisor each time, and notes the
               longest that it waited for that
    tenant:    one call with a large result, or a large input, meanwhile

A machine that is busy makes waits longer, never shorter: of several rounds the least is given.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from sandbox_bench.report import bar, finish

from rocstar.sandbox import ExecRequest, Limits, SandboxPool
from rocstar.sandbox.bench import table
from rocstar.sandbox.types import MAX_OUTPUT_BYTES, MAX_TEXT_BYTES

BAR_MS = 20.0
FILES = [f"{n}.bin" for n in range(16)]
FILE_BYTES = (64 << 20) // len(FILES)
ROOM = Limits(
    wall_s=30, memory_bytes=2 << 30, output_bytes=MAX_OUTPUT_BYTES, file_bytes=FILE_BYTES, files=len(FILES)
)

NEIGHBOUR = """
import os, time
print("begun", flush=True)
longest, end = 0.0, time.monotonic() + 2.5
while (before := time.monotonic()) < end:
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY))
    longest = max(longest, time.monotonic() - before)
    time.sleep(0.0002)
longest * 1e3
"""
STREAMS = "import sys\ntext = 'x' * (64 << 20)\nsys.stdout.write(text)\nsys.stderr.write(text)\ntext"
BAD = "import os\nfor _ in range(64):\n    os.write(1, b'\\xff' * (1 << 20))"
WRITE_FILES = f"for n in range({len(FILES)}):\n    open(f'{{n}}.bin', 'wb').write(b'x' * {FILE_BYTES})"


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("passes", help="how long large results keep the supervisor from others")
    parser.add_argument("--rounds", type=int, default=5)


def calls() -> dict[str, ExecRequest]:
    def call(code: str, **fields: Any) -> ExecRequest:
        return ExecRequest(code=code, owner="tenant", limits=ROOM, **fields)

    return {
        "a print": call("print(1)"),
        "64 MiB of output": call("print('x' * ((64 << 20) - 1))"),
        "64 MiB that are no text": call(BAD),
        "all three streams full": call(STREAMS),
        "64 MiB of files out": call(WRITE_FILES, fetch=FILES),
        "64 MiB of files in": call("1", files={name: b"x" * FILE_BYTES for name in FILES}),
        "16 MiB of standard input": call("input()", stdin="x" * MAX_TEXT_BYTES),
    }


async def longest_wait_ms(pool: SandboxPool, call: ExecRequest) -> float:
    begun = asyncio.Event()
    beside = ExecRequest(code=NEIGHBOUR, owner="neighbour", limits=Limits(wall_s=30, files=65_536))
    neighbour = asyncio.create_task(pool.run(beside, on_output=lambda stream, text: begun.set()))
    await begun.wait()
    await pool.run(call)
    result = await neighbour
    assert result.value is not None, result
    return float(result.value)


async def run(options: argparse.Namespace) -> int:
    rows = []
    async with SandboxPool() as pool:
        for name, call in calls().items():
            waits = [await longest_wait_ms(pool, call) for _ in range(options.rounds)]
            rows.append({"what": name, "longest_ms": round(min(waits), 1)})
    print(table(("", "a neighbour waits, ms"), [list(row.values()) for row in rows]), end="\n\n")
    bars = [bar(f"{row['what']}, ms", row["longest_ms"], BAR_MS, at_most=True) for row in rows]
    return finish("passes", {"rounds": options.rounds, "rows": rows}, bars, options.out)
