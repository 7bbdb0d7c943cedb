"""What one program may do to the calls and sessions of others: nothing that changes how they end."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import MAX_OUTPUT_BYTES, ExecRequest, Limits, SandboxError, SessionLost, Status

from .. import needs

MIB = 1 << 20
GROWS_BETWEEN_CELLS = """
import os, threading, time
source = os.open("/dev/urandom", os.O_RDONLY)
threading.Thread(target=os.read, args=(source, 32 << 20), daemon=True).start()
time.sleep(0.01)
"""
"""One call into the kernel, which needs no interpreter lock: it goes on when the cell is over."""


async def test_a_session_that_grows_between_cells_gives_way_and_not_its_neighbour() -> None:
    async with SandboxPool(memory_bytes=128 * MIB) as pool:
        limits = Limits(memory_bytes=64 * MIB)
        neighbour = await pool.open_session(limits=limits)
        await neighbour.run("x = 1")
        grown = [await pool.open_session(limits=limits) for _ in range(6)]
        for session in grown:
            assert (await session.run(GROWS_BETWEEN_CELLS)).status is Status.OK
        async with asyncio.timeout(20):
            while pool.evictions == 0:
                await pool.run(
                    ExecRequest(code="1", limits=Limits(memory_bytes=MIB))
                )  # the supervisor looks every second
        assert (await neighbour.run("x")).value == "1"
        lost = [session.lost for session in grown if session.lost is not None]
        assert lost and set(lost) == {"evicted"}
        with pytest.raises(SessionLost):
            await next(session for session in grown if session.lost).run("1")


def memory_group(pid: int) -> tuple[Path, Path] | None:
    """The files of the pool's cgroup that hold its limit and its use."""
    for parent, limit, use in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ):
        for group in Path(parent).rglob(f"rocstar-{pid}"):
            return group / limit, group / use
    return None


@pytest.mark.privileged
async def test_a_kill_by_the_kernel_below_the_programs_own_limit_is_no_verdict() -> None:
    async with SandboxPool() as pool:
        if "cgroup" not in pool.isolation:
            needs.ROOT.skip()
        await pool.run("print(1)")
        group = memory_group(pool.supervisor_pid)
        assert group is not None
        limit, use = group
        limit.write_text(str(int(use.read_text()) + 64 * MIB))
        with pytest.raises(SandboxError) as failure:
            await pool.run(
                ExecRequest(code="x = bytearray(b'x') * (400 << 20)", limits=Limits(memory_bytes=500 * MIB))
            )
        assert (failure.value.kind, failure.value.retryable) == ("node_memory", True)
        assert (await pool.run("print(1)")).stdout == "1\n" and pool.restarts == 0


@pytest.mark.slow
async def test_the_largest_output_of_bytes_that_are_no_text_is_that_calls_own() -> None:
    code = "import os\nfor fd in (1, 2):\n    for _ in range(800): os.write(fd, b'\\xff' * (1 << 16))\n"
    async with SandboxPool() as pool:
        session = await pool.open_session()
        await session.run("x = 1")
        request = ExecRequest(code=code, limits=Limits(output_bytes=MAX_OUTPUT_BYTES, wall_s=300, cpu_s=300))
        result = await pool.run(request)
        assert (result.status, result.stdout_truncated, result.stderr_truncated) == (Status.OK, True, True)
        assert len(result.stdout.encode()) < MAX_OUTPUT_BYTES + 100
        assert (await session.run("x")).value == "1" and pool.restarts == 0


async def test_a_batch_leaves_places_to_others() -> None:
    """It was first come, first served: a call waited for all sixty."""
    order: list[str] = []

    async def batch(pool: SandboxPool, begun: asyncio.Event) -> None:
        sleepers = [ExecRequest(code="import time; time.sleep(0.4)") for _ in range(30)]
        async for _ in pool.run_batch(sleepers):
            order.append("sleeper")
            begun.set()

    async with SandboxPool(max_live=2) as pool:
        begun = asyncio.Event()
        running = asyncio.create_task(batch(pool, begun))
        await begun.wait()
        for _ in range(3):
            assert (await pool.run("print(1)")).stdout == "1\n"
            order.append("other")
        running.cancel()
    # Each of the three waited for one place, which the two sleepers under way had.
    assert order.index("other") <= 6 and order.count("sleeper") <= 14


async def test_a_call_of_the_whole_budget_delays_no_small_one_and_evicts_nobody_for_nothing() -> None:
    budget = 512 * MIB
    async with SandboxPool(max_live=3, memory_bytes=budget) as pool:
        small = Limits(memory_bytes=32 * MIB)
        session = await pool.open_session(limits=small)
        busy = asyncio.create_task(
            pool.run(ExecRequest(code="import time; time.sleep(2)", limits=Limits(memory_bytes=400 * MIB)))
        )
        large = asyncio.create_task(pool.run(ExecRequest(code="1", limits=Limits(memory_bytes=budget))))
        result = await pool.run(ExecRequest(code="print(1)", limits=small))
        assert result.stdout == "1\n" and not busy.done() and not large.done()
        assert (await session.run("1")).value == "1" and not busy.done()
        assert (await busy).status is (await large).status is Status.OK


async def test_owners_share_the_places_however_many_calls_each_has() -> None:
    done: list[str] = []

    async def call(pool: SandboxPool, owner: str) -> None:
        await pool.run(ExecRequest(code="import time; time.sleep(0.1)", owner=owner))
        done.append(owner)

    async with SandboxPool(max_live=2) as pool:
        calls = [call(pool, "many") for _ in range(40)] + [call(pool, "few") for _ in range(4)]
        await asyncio.gather(*calls)
    assert "few" not in done[-20:]


async def test_idle_sessions_keep_no_more_than_half_of_the_scratch_room() -> None:
    pool = SandboxPool()
    pool._keeper.options = dataclasses.replace(pool._keeper.options, scratch_bytes=16 * MIB)
    async with pool:
        if not pool._facts["files"]:
            needs.LANDLOCK.skip()
        modest = await pool.open_session()
        await modest.run("open('a', 'wb').write(b'x' * (1 << 20))")
        greedy = [await pool.open_session() for _ in range(3)]
        for session in greedy:
            await session.run("for n in range(2): open(str(n), 'wb').write(b'x' * (2 << 20))")
        async with asyncio.timeout(20):
            while pool.evictions < 2:
                await pool.run("1")  # the supervisor looks every second
        assert (await pool.run("open('b', 'wb').write(b'x' * (4 << 20))")).status is Status.OK
        assert modest.lost is None
