"""Programs in one call: each index once, each program for itself, and nothing left when the caller stops."""

import asyncio

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError

from ..patience import PATIENCE_S
from .watching import programs_of, until

HANG = "import time; time.sleep(600)"
LONG = Limits(wall_s=300)
GIB = 1 << 30


async def test_a_batch_gives_each_index_once_as_programs_end() -> None:
    async with SandboxPool(max_live=2) as pool:
        requests = [ExecRequest(code=f"{i}") for i in range(40)]
        got = [(index, outcome) async for index, outcome in pool.run_batch(requests)]
    assert sorted(index for index, _ in got) == list(range(40))
    values = {index: outcome.value for index, outcome in got if isinstance(outcome, ExecResult)}
    assert values == {i: str(i) for i in range(40)}


async def test_those_behind_a_slow_one_do_not_wait_for_it() -> None:
    async with SandboxPool(max_live=2) as pool:
        batch = pool.run_batch([ExecRequest(code=HANG, limits=LONG), *["1"] * 12])
        async with asyncio.timeout(PATIENCE_S):
            got = [(await anext(batch))[0] for _ in range(12)]
        assert sorted(got) == list(range(1, 13))
        await batch.aclose()


async def test_a_failure_in_a_batch_is_its_calls_own() -> None:
    async with SandboxPool(memory_bytes=GIB) as pool:
        requests = [
            ExecRequest(code="1"),
            ExecRequest(code="2", flavour="numeric"),
            ExecRequest(code="3", limits=Limits(memory_bytes=2 * GIB)),
            ExecRequest(code="1 / 0"),
            ExecRequest(code="é" * (9 << 20)),
            ExecRequest(code="5"),
        ]
        got = {index: outcome async for index, outcome in pool.run_batch(requests)}
        assert pool.in_flight == 0
    kinds = [got[i].kind if isinstance(got[i], SandboxError) else got[i].status for i in range(6)]
    assert kinds == ["ok", "unknown_flavour", "too_large", "error", "too_large", "ok"]
    assert [outcome async for outcome in pool.run_batch([])] == []


async def test_closing_a_batch_kills_what_still_runs() -> None:
    async with SandboxPool(max_live=3) as pool:
        requests = [ExecRequest(code="1"), *(ExecRequest(code=HANG, limits=LONG) for _ in range(20))]
        batch = pool.run_batch(requests)
        index, _ = await anext(batch)
        assert index == 0
        await batch.aclose()
        await until(lambda: pool.in_flight == 0 and not programs_of(pool))


async def test_a_batch_ends_at_its_deadline() -> None:
    async with SandboxPool(max_live=2, max_queued=0) as pool:
        requests = [ExecRequest(code="1"), *(ExecRequest(code=HANG, limits=LONG) for _ in range(40))]
        deadline = asyncio.get_running_loop().time() + 1.5
        got = {index: outcome async for index, outcome in pool.run_batch(requests, deadline=deadline)}
        await until(lambda: pool.in_flight == 0 and not programs_of(pool))
    assert len(got) == 41 and isinstance(got[0], ExecResult)
    assert {outcome.kind for outcome in got.values() if isinstance(outcome, SandboxError)} == {"deadline"}


async def test_a_cancelled_batch_leaves_nothing() -> None:
    async with SandboxPool(max_live=2, max_queued=0) as pool:

        async def consume() -> None:
            requests = [ExecRequest(code=HANG, limits=LONG) for _ in range(40)]  # more than there is room for
            async for _ in pool.run_batch(requests):
                pass

        task = asyncio.create_task(consume())
        await until(lambda: len(programs_of(pool)) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: pool.in_flight == 0 and not programs_of(pool))
        assert (await pool.run(ExecRequest(code="1"))).value == "1"
