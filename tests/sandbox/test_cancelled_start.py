"""Ctrl-C while the sandbox starts: whenever the cancellation comes, the start ends and nothing is left."""

import asyncio

import pytest
import uvloop

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.pool.process import Supervisor

DEADLINE_S = 300.0


@pytest.mark.parametrize("turns", range(1, 8))
def test_a_start_that_is_cancelled_ends(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`turns` of the event loop after its begin; one more each time, through the making of the connection."""
    started: list[Supervisor] = []
    original = Supervisor.start

    async def start(self: Supervisor) -> None:
        started.append(self)
        await original(self)

    monkeypatch.setattr(Supervisor, "start", start)

    async def use() -> None:
        async with SandboxPool(["stdlib"]):
            raise AssertionError("it was cancelled before it was warm")

    async def cancelled() -> None:
        task = asyncio.ensure_future(use())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=DEADLINE_S)
        assert done and task.cancelled()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(cancelled())
    assert [s._process.returncode is not None for s in started] == [True], "reaped"
