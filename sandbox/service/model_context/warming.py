"""A pool that is still starting, for who has to be answered meanwhile.

client --initialize, tools/list--> answered at once
       --tools/call--------------> waits for the pool --> runs
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import DEFAULT_LIMITS, ExecRequest, ExecResult, Limits, SandboxError, Session


class WarmingPool:
    """Calls wait for `starting`, and raise what it raises. Some clients give a server five seconds for its
    first answer, and importing what the heaviest flavour has can take ten times that."""

    def __init__(self, pool: SandboxPool, starting: "asyncio.Task[None]") -> None:
        self._pool = pool
        self._starting = starting

    @property
    def flavours(self) -> tuple[str, ...]:
        return self._pool.flavours

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        await asyncio.shield(self._starting)
        return await self._pool.run(request, deadline=deadline)

    async def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncGenerator[tuple[int, ExecResult | SandboxError], None]:
        await asyncio.shield(self._starting)
        async for item in self._pool.run_batch(requests, deadline=deadline):
            yield item

    async def open_session(
        self,
        *,
        flavour: str = "auto",
        limits: Limits = DEFAULT_LIMITS,
        seed: int | None = None,
        owner: str = "",
    ) -> Session:
        await asyncio.shield(self._starting)
        return await self._pool.open_session(flavour=flavour, limits=limits, seed=seed, owner=owner)
