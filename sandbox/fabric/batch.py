"""A sandbox that takes single programs, made to take many."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

from rocstar.sandbox.fabric.wire import Outcome
from rocstar.sandbox.types import BatchSandbox, ExecRequest, ExecResult, Sandbox, SandboxError


def as_batch(sandbox: Sandbox) -> BatchSandbox:
    """The sandbox itself if it has `run_batch`, otherwise one that runs a batch's calls side by side."""
    return cast(BatchSandbox, sandbox) if hasattr(sandbox, "run_batch") else _SideBySide(sandbox)


class _SideBySide:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        return await self._sandbox.run(request, deadline=deadline)

    async def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, Outcome]]:
        async def one(index: int) -> tuple[int, Outcome]:
            try:
                return index, await self._sandbox.run(requests[index], deadline=deadline)
            except SandboxError as error:
                return index, error

        tasks = [asyncio.create_task(one(index)) for index in range(len(requests))]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
