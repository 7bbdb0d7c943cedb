"""Records what the real pool answers, for FakeSandbox to be checked against:

python tests/sandbox/record.py
"""

import asyncio
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, Limits, SessionLost

RECORDINGS = Path(__file__).parent / "recordings" / "pool.json"

LIMITS = Limits(wall_s=0.5, memory_bytes=256 << 20, output_bytes=4096)

PROGRAMS = (
    "print(1)",
    "1 + 1",
    "x = 1",
    "print('before')\n1 / 0",
    "import sys; sys.exit(3)",
    "import os; os.kill(os.getpid(), 11)",
    "while True: pass",
    "x = bytearray(1 << 40)",
    "print('x' * 10**6)",
    "import ctypes; ctypes.CDLL(None).unshare(0)",
    "import socket; socket.socket()",
)


SESSIONS = (
    ("x = 1", "x", "1 / 0", "x + 1", "print('a'); x"),
    ("raise MemoryError", "1"),
    ("import time; time.sleep(60)", "1"),
    ("while True: print('x' * 1000)",),
    ("import sys; sys.exit(3)", "1"),
    ("exit()", "1"),
    ("import os; os.kill(os.getpid(), 11)", "1"),
)
"""Cells; the last one of those that end their session finds it lost."""


async def record_session(pool: SandboxPool, codes: Sequence[str]) -> list[dict[str, Any]]:
    session = await pool.open_session(limits=LIMITS)
    cells: list[dict[str, Any]] = []
    for code in codes:
        try:
            cells.append({"code": code, "result": (await session.run(code)).to_json()})
        except SessionLost as loss:
            cells.append({"code": code, "lost": loss.reason})
    return cells


async def record() -> None:
    async with SandboxPool() as pool:
        cases = [
            {"code": code, "result": (await pool.run(ExecRequest(code=code, limits=LIMITS))).to_json()}
            for code in PROGRAMS
        ]
        sessions = [await record_session(pool, codes) for codes in SESSIONS]
    head = {"command": "python tests/sandbox/record.py", "python": platform.python_version()}
    RECORDINGS.parent.mkdir(exist_ok=True)
    RECORDINGS.write_text(json.dumps({**head, "cases": cases, "sessions": sessions}, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(record())
