"""Redis, a worker or this process stands still for a while: that is no verdict on anybody else."""

import asyncio
import math
from typing import Any

import pytest

from rocstar.sandbox.fabric import RedisFabric, WorkerInfo
from rocstar.sandbox.fabric.receiver import SMALLEST_WINDOW
from rocstar.sandbox.fabric.redis_connection import LONGEST_STEP_S, PREFIX, RedisConnection
from rocstar.sandbox.types import ExecRequest
from tests.fakes.sandbox import ok

from .harness import Programs, RedisServer, client, dying, gather, until, working

CALLS = f"{PREFIX}:calls:stdlib"


async def test_workers_that_were_stopped_have_not_died(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        call = asyncio.create_task(fabric.run(ExecRequest(code="wait door")))
        for times in range(1, 5):
            async with working(redis.url, programs, max_deliveries=2, claim_idle_s=1800.0):
                await until(lambda times=times: programs.runs["wait door"] == times)
        programs.open("door")
        async with working(redis.url, programs, max_deliveries=2, claim_idle_s=1800.0):
            assert await call == ok("door")


async def test_without_a_worker_no_more_is_in_redis_than_with_few(redis: RedisServer, programs: Programs) -> None:
    """What Redis has it gives out in order, whosever it is: another's call waits for all of it."""

    async def is_full() -> None:
        await until(lambda: int(redis.cli("xlen", CALLS)) == SMALLEST_WINDOW)
        for _ in range(3):
            await fabric.workers()
            await asyncio.sleep(0)
        assert int(redis.cli("xlen", CALLS)) == SMALLEST_WINDOW

    codes = ["wait door"] * 400
    async with client(redis.url, entry_calls=1) as fabric:
        waiting = asyncio.create_task(gather(fabric, codes))
        await is_full()
        async with dying(redis.url, programs, capacity=1, claim_idle_s=0.1):
            await until(lambda: fabric.capacity == 1)
        await until(lambda: fabric.capacity == 0)
        assert int(redis.cli("xlen", CALLS)) <= SMALLEST_WINDOW
        waiting.cancel()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_time_in_which_nobody_tried_is_none_of_redis() -> None:
    connection, clock, error = RedisConnection("unix:///nowhere"), Clock(), TimeoutError()
    connection.clock = clock
    connection.failed("read", error)
    clock.now += 60.0  # this process was stopped
    assert connection.down_s() <= LONGEST_STEP_S
    connection.failed("read", error)
    assert connection.down_s() <= LONGEST_STEP_S
    for _ in range(10):
        clock.now += LONGEST_STEP_S
        connection.failed("read", error)
    assert 10 * LONGEST_STEP_S <= connection.down_s() <= 11 * LONGEST_STEP_S
    assert connection.down_s(since=clock.now - 1.0) == 1.0
    connection.up("read")
    assert connection.down_s() == 0.0


async def test_workers_that_could_not_be_counted_are_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their leases ended while Redis answered nobody: they renew them a moment after it answers again."""
    fabric, clock = RedisFabric("unix:///nowhere", patience_s=30.0), Clock()
    there = [WorkerInfo(name="a", capacity=3, flavours=("stdlib",))]
    fabric._connection.clock = clock

    async def look(workers: list[WorkerInfo]) -> None:
        async def keep_up(*_: Any) -> tuple[float, bool, list[WorkerInfo]]:
            return clock.now, True, workers

        monkeypatch.setattr(fabric._redis, "keep_up", keep_up)
        await fabric._receiver.refresh()

    async def server_s() -> float:
        return clock.now

    monkeypatch.setattr(fabric._redis, "server_s", server_s)
    request = ExecRequest(code="1", flavour="stdlib")
    call = fabric._open_calls.open(request, lambda outcome: None, opened_at=clock.now)
    await look(there)
    clock.now += 60.0
    await look([])
    assert fabric._timeout_error(call) is None
    for _ in range(61):
        clock.now += 0.5
        await look([])
    assert "no worker of flavour stdlib has been alive for 30.5 s" in str(fabric._timeout_error(call))
    assert math.isfinite(fabric._receiver.counted_at)
