"""`rocstar train` with the peer's bare worker where its sandbox runs the policy's programs.

    python our_step.py RECIPE [OPTION ...]          as `python -m rocstar.train` takes them

For a benchmark alone: a program here may do to this machine whatever it wants. Grading stays confined.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from trl_bench import tool

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Sandbox, SandboxError, Status
from rocstar.train import cli
from rocstar.train import main as training
from rocstar.train.recipe.config import Recipe
from rocstar.train.tasks.reward import VERIFIER_FLAVOUR


class BareSandbox:
    """The peer's worker as a sandbox, for all flavours but the graders', which go to `confined`.

    Who waits: the event loop, for as long as a program runs, as TRL's does.
    """

    def __init__(self, run: tool.Run, confined: Sandbox) -> None:
        self._run, self._confined = run, confined

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        if request.flavour == VERIFIER_FLAVOUR:
            return await self._confined.run(request, deadline=deadline)
        started = time.perf_counter()
        fine, text = self._run(request.code)
        return ExecResult(
            status=Status.OK if fine else Status.ERROR,
            exit_code=int(not fine),
            signal=None,
            stdout="" if not fine or text == tool.NOTHING else text,
            stderr="" if fine else text,
            stdout_truncated=False,
            stderr_truncated=False,
            value=None,
            wall_s=time.perf_counter() - started,
            cpu_s=0.0,
            peak_memory_bytes=0,
            isolation="none",
        )

    async def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, ExecResult | SandboxError]]:
        for index, request in enumerate(requests):
            try:
                yield index, await self.run(request, deadline=deadline)
            except SandboxError as error:
                yield index, error


def main() -> int:
    run = tool.bare()  # the worker before any thread

    @contextlib.asynccontextmanager
    async def open_bare(recipe: Recipe) -> AsyncIterator[BareSandbox]:
        async with SandboxPool([VERIFIER_FLAVOUR]) as confined:
            yield BareSandbox(run, confined)

    training.open_sandbox = open_bare
    return cli.main(["train", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
