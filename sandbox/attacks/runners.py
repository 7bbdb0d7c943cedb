"""What runs the programs of a pair: a pool, as calls or as sessions."""

import re
from collections.abc import Awaitable, Callable

from rocstar.sandbox.attacks.pair import STDLIB
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits

LIMITS = Limits(wall_s=10.0, cpu_s=10, memory_bytes=2 << 30)

Run = Callable[[str, str], Awaitable[str]]
"""Runs a program of a flavour and gives what it printed."""

BROKEN = re.compile(
    r"\b(?:Import|ModuleNotFound|Name|Syntax|Attribute|Type|Value|Index|Key)Error\b|command not found"
)
"""What a program says that has tried nothing."""


def _said(pair_of_programs: str, result: ExecResult) -> str:
    """Raises RuntimeError for a program that is wrong, so that its silence proves nothing."""
    if BROKEN.search(result.stderr):
        raise RuntimeError(f"a program is wrong: {result.stderr[-400:]}\n{pair_of_programs}")
    return result.stdout or f"{result.status} {result.stderr[-200:]}"


def calls_of(pool: SandboxPool) -> Run:
    async def run(code: str, flavour: str = STDLIB) -> str:
        result = await pool.run(ExecRequest(code=code, limits=LIMITS, flavour=flavour))
        return _said(code, result)

    return run


def sessions_of(pool: SandboxPool) -> Run:
    """Each program is the first cell of a session of its own, if its flavour has any."""
    call = calls_of(pool)

    async def run(code: str, flavour: str = STDLIB) -> str:
        if flavour != STDLIB:
            return await call(code, flavour)
        session = await pool.open_session(limits=LIMITS, flavour=flavour)
        try:
            result = await session.run(code)
            return _said(code, result)
        finally:
            await session.close()

    return run
