"""Bounds of the fabric's client and of Redis, who is counted, and what is left when somebody goes."""

import asyncio
from collections.abc import Iterator

import pytest

from rocstar.sandbox.fabric import RedisFabric, WorkerInfo
from rocstar.sandbox.fabric.batch_prefetch import AHEAD_CALLS, OPENED_AT_ONCE
from rocstar.sandbox.fabric.receiver import SMALLEST_WINDOW
from rocstar.sandbox.fabric.redis_commands import LEASE_S
from rocstar.sandbox.fabric.redis_connection import PREFIX
from rocstar.sandbox.fabric.wire import WireCall
from rocstar.sandbox.types import ExecRequest, SandboxError
from tests.fakes.sandbox import ok

from ...patience import PATIENCE_S
from ..errors import sandbox_error
from .harness import Programs, RedisServer, client, dying, encode_entry, gather, redis_server, until, working


async def test_a_full_stream_refuses_new_calls_and_no_others(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url, entry_calls=1, max_queued_entries=3) as fabric:
        waiting = asyncio.create_task(gather(fabric, [f"say {n}" for n in range(3)]))
        await until(lambda: fabric.counters()["entries"] == 3)
        outcomes = await gather(fabric, [f"say {n}" for n in range(20)])
        refused = [o for o in outcomes.values() if isinstance(o, SandboxError)]
        assert {(o.kind, o.retryable) for o in refused} == {("full", True)}
        assert fabric.counters()["refused"] == len(refused) == 20
        async with working(redis.url, programs):
            assert await waiting == {n: ok(str(n)) for n in range(3)}
            assert await fabric.run(ExecRequest(code="say 9")) == ok("9")


async def test_one_client_has_its_own_bounds(redis: RedisServer) -> None:
    async with client(redis.url, max_calls=2) as fabric:
        waiting = asyncio.create_task(gather(fabric, ["say 1", "say 2"]))
        await until(lambda: len(fabric._open_calls.calls) == 2)
        with sandbox_error("full", "2 calls open"):
            await fabric.run(ExecRequest(code="say 3"))
        waiting.cancel()
    async with client(redis.url, max_bytes=100) as fabric:
        waiting = asyncio.create_task(gather(fabric, ["say " + "x" * 100]))
        await until(lambda: len(fabric._open_calls.calls) == 1)
        with pytest.raises(SandboxError, match="100 bytes"):
            await fabric.run(ExecRequest(code="say 3"))
        waiting.cancel()


async def test_others_have_turns_while_a_large_batch_is_opened() -> None:
    """65,536 calls at once would hold the loop for half a second."""
    fabric, number = RedisFabric("redis://127.0.0.1:1"), 4 * OPENED_AT_ONCE
    opened: list[int] = []

    async def other() -> None:
        while True:
            opened.append(asked.count)
            await asyncio.sleep(0)

    class Asked(list[ExecRequest]):
        count = 0

        def __iter__(self) -> Iterator[ExecRequest]:
            for request in super().__iter__():
                self.count += 1
                yield request

    asked = Asked([ExecRequest(code="1", flavour="stdlib")] * number)
    beside = asyncio.create_task(other())
    outcomes = [index async for index, outcome in fabric.run_batch(asked)]
    beside.cancel()
    assert outcomes == [*range(number)]
    assert opened[:4] == [OPENED_AT_ONCE * part for part in (1, 2, 3, 4)]


async def test_of_a_large_batch_few_calls_are_open(redis: RedisServer, programs: Programs) -> None:
    number, seen, most = 4 * AHEAD_CALLS, set(), 0
    requests = [ExecRequest(code=f"say {n}") for n in range(number)]
    async with working(redis.url, programs), client(redis.url) as fabric:
        async with asyncio.timeout(PATIENCE_S):
            async for index, outcome in fabric.run_batch(requests):
                seen.add((index, outcome.stdout))
                most = max(most, len(fabric._open_calls.calls))
    assert seen == {(n, str(n)) for n in range(number)}
    assert SMALLEST_WINDOW < most <= AHEAD_CALLS + SMALLEST_WINDOW


async def test_outputs_that_nobody_reads_hold_up_their_batch(
    redis: RedisServer, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = 1 << 20
    monkeypatch.setattr("rocstar.sandbox.fabric.batch_prefetch.MAX_HELD", held)
    requests = [ExecRequest(code=f"say {n} " + "x" * (held // 5)) for n in range(9)]
    async with working(redis.url, programs, capacity=16), client(redis.url) as fabric:
        outcomes = fabric.run_batch(requests)
        first, _ = await anext(outcomes)
        await until(lambda: len(fabric._open_calls.calls) == 0)
        assert len(programs.ended) <= 6
        assert {first} | {index async for index, _ in outcomes} == set(range(9))


async def test_redis_without_memory_is_full() -> None:
    with redis_server("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as redis:
        async with client(redis.url) as fabric:
            redis.cli("config", "set", "maxmemory", "1")
            with sandbox_error("full", "out of memory", retryable=True):
                await fabric.run(ExecRequest(code="say 1"), deadline=asyncio.get_running_loop().time() + 10)


async def test_workers_are_counted_while_they_live(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        assert await fabric.workers() == []
        async with working(redis.url, programs, capacity=3, name="a"):
            assert await fabric.workers() == [WorkerInfo(name="a", capacity=3, flavours=("stdlib",))]
            async with dying(redis.url, programs, name="b"):
                assert len(await fabric.workers()) == 2
                call = asyncio.create_task(fabric.run(ExecRequest(code="wait door")))
                await until(lambda: programs.runs["wait door"] == 1)
                assert redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "1\n"
                programs.open("door")
                await call
                assert redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "0\n"
            async with asyncio.timeout(PATIENCE_S):
                while len(await fabric.workers()) != 1:
                    pass
        assert await fabric.workers() == []


async def test_calls_of_a_closed_client_end(redis: RedisServer) -> None:
    async with client(redis.url) as fabric:
        waiting = asyncio.create_task(gather(fabric, ["say 1"]))
        await until(lambda: fabric.counters()["entries"] == 1)
    assert (await waiting)[0].kind == "closed"
    with sandbox_error("closed"):
        await fabric.run(ExecRequest(code="say 1"))
    assert redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "0\n"


async def test_nothing_stays_that_does_not_expire(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs), client(redis.url) as fabric:
        await gather(fabric, [f"say {n}" for n in range(50)])
        keys = redis.cli("keys", "*").split()
        assert all(key.startswith(PREFIX) for key in keys)
        assert all(int(redis.cli("ttl", key)) > 0 for key in keys), keys
        assert redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "0\n"
    left = redis.cli("keys", "*").split()
    assert set(left) <= {f"{PREFIX}:calls:stdlib", f"{PREFIX}:workers"}
    assert redis.cli("xinfo", "consumers", f"{PREFIX}:calls:stdlib", "workers").split() == []


async def test_answers_are_trimmed_while_the_client_lives(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs), client(redis.url) as fabric:
        for _ in range(3):
            await gather(fabric, [f"say {n}" for n in range(64)])
        (reply,) = redis.cli("keys", "*:reply:*").split()
        await until(lambda: int(redis.cli("xlen", reply)) <= 1)


async def test_the_calls_of_a_dead_client_are_not_run(redis: RedisServer, programs: Programs) -> None:
    """An entry that is older than a client's lease, of a client that has none."""
    call = WireCall(id=1, request=ExecRequest(code="say 1"), remaining_s=None)
    server_ms = int(redis.cli("time").split()[0]) * 1000
    key, old = f"{PREFIX}:calls:stdlib", f"{server_ms - 2000 * LEASE_S}-0"
    redis.cli("xadd", key, old, "client", "gone", "calls", last=encode_entry([call]))
    async with working(redis.url, programs) as worker:
        await until(lambda: redis.cli("xlen", key) == "0\n")
        assert worker.counters()["orphaned_calls"] == 1
    assert not programs.runs


async def test_an_entry_that_cannot_be_read_is_refused_and_goes(redis: RedisServer, programs: Programs) -> None:
    key = f"{PREFIX}:calls:stdlib"
    redis.cli("xadd", key, "*", "client", "someone", "calls", "nonsense")
    redis.cli("xadd", key, "*", "nothing", "known")
    async with working(redis.url, programs), client(redis.url) as fabric:
        assert await fabric.run(ExecRequest(code="say 1")) == ok("1")
        await until(lambda: redis.cli("xlen", key) == "0\n")


async def test_a_mistake_in_the_caller_is_its_own(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs), client(redis.url) as fabric:
        with pytest.raises(TypeError, match="Pass a str"):
            await fabric.run(ExecRequest(code=b"print(1)"))  # type: ignore[arg-type]
        assert await fabric.run(ExecRequest(code="say 1")) == ok("1")
