"""Pools for the tests. `run` is the short way to execute one program in the standard library's flavour.

They live for a module: its tests also show that one program leaves nothing for the next.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from rocstar.sandbox.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits

Run = Callable[..., Awaitable[ExecResult]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool() as pool:
        yield pool


def runner(pool: SandboxPool) -> Run:
    async def run(code: str, *, stdin: str = "", seed: int | None = None, **limits: Any) -> ExecResult:
        return await pool.run(ExecRequest(code=code, stdin=stdin, seed=seed, limits=Limits(**limits)))

    return run


@pytest.fixture(scope="module")
def run(pool: SandboxPool) -> Run:
    return runner(pool)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["all layers", "without landlock and uid"]
)
async def guarded(request: pytest.FixtureRequest) -> AsyncIterator[Run]:
    """Runs a program with every layer, and again with only those that any machine has."""
    without = ("landlock", "uid") if request.param.startswith("without") else ()
    async with SandboxPool(without=without) as pool:
        yield runner(pool)
