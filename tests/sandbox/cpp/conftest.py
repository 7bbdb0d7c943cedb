"""Pools that compile, one per module: their tests also show that one program leaves nothing for the next."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rocstar.sandbox.pool.pool import SandboxPool

from ...patience import PATIENCE_S
from .compiling import Run, runner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(("cpp",), compile_s=PATIENCE_S) as pool:
        yield pool


@pytest.fixture(scope="module")
def run(pool: SandboxPool) -> Run:
    return runner(pool)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quick(pool: SandboxPool) -> AsyncIterator[SandboxPool]:
    """A pool whose compilations are cut short."""
    async with SandboxPool(("cpp",), compile_s=0.6, without=("namespaces",)) as pool:
        yield pool
