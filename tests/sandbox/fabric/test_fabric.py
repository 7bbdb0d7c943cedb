"""Client and worker over a real Redis: outcomes, order, deadlines, and cancellation."""

import asyncio
from typing import Any

import pytest

from rocstar.sandbox.fabric import client as client_module
from rocstar.sandbox.fabric.redis_connection import PREFIX
from rocstar.sandbox.types import ExecRequest, SandboxError
from tests.fakes.sandbox import FakeSandbox, error, ok, timeout

from ...patience import PATIENCE_S
from ..errors import sandbox_error
from .harness import Programs, RedisServer, client, gather, until, working


def say(number: int) -> ExecRequest:
    return ExecRequest(code=f"say {number}")


async def test_every_kind_of_result_arrives(redis: RedisServer) -> None:
    script = {"a": ok("out", value="1"), "b": error("oh"), "c": timeout(), "d": ok("\x00é\udcff")}
    async with working(redis.url, FakeSandbox(script)), client(redis.url) as fabric:
        assert await gather(fabric, list(script)) == dict(enumerate(script.values()))


@pytest.mark.parametrize("size", [0, 1, 16, 17, 200])
async def test_batches_of_any_size(redis: RedisServer, programs: Programs, size: int) -> None:
    async with working(redis.url, programs), client(redis.url) as fabric:
        outcomes = await gather(fabric, [f"say {n}" for n in range(size)])
        assert outcomes == {n: ok(str(n)) for n in range(size)}
        assert fabric.counters()["entries"] >= size / 16
    assert set(programs.runs.values()) <= {1}


async def test_a_slow_program_does_not_hold_up_the_others(redis: RedisServer, programs: Programs) -> None:
    requests = [ExecRequest(code="wait door"), *(say(n) for n in range(7))]
    async with working(redis.url, programs, capacity=16), client(redis.url, entry_calls=8) as fabric:
        seen = []
        async with asyncio.timeout(PATIENCE_S):
            async for index, _ in fabric.run_batch(requests):
                seen.append(index)
                if len(seen) == 7:
                    assert programs.ended["wait door"] == 0
                    programs.open("door")
        assert sorted(seen[:7]) == list(range(1, 8))
        assert seen[7] == 0


async def test_single_programs_travel_together(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs), client(redis.url) as fabric:
        results = await asyncio.gather(*(fabric.run(say(n)) for n in range(64)))
        assert results == [ok(str(n)) for n in range(64)]
        assert fabric.counters()["entries"] <= 16


async def test_two_clients_and_two_workers(redis: RedisServer, programs: Programs) -> None:
    async with (
        working(redis.url, programs, capacity=2) as first,
        working(redis.url, programs, capacity=2) as second,
        client(redis.url) as one,
        client(redis.url) as other,
    ):
        batches = [[f"say {name} {n}" for n in range(100)] for name in "abcd"]
        fabrics = [one, other, one, other]
        found = await asyncio.gather(*(gather(f, codes) for f, codes in zip(fabrics, batches, strict=True)))
        for codes, outcomes in zip(batches, found, strict=True):
            assert outcomes == {n: ok(code.removeprefix("say ")) for n, code in enumerate(codes)}
        assert first.counters()["calls"] + second.counters()["calls"] == 400
        assert min(first.counters()["calls"], second.counters()["calls"]) > 0
        assert one.counters()["calls"] == other.counters()["calls"] == 200
    assert set(programs.runs.values()) <= {1}


async def test_flavours_find_their_workers(redis: RedisServer) -> None:
    numeric = FakeSandbox(lambda request: ok("numeric" if request.flavour == "numeric" else "?"))
    plain = FakeSandbox(lambda request: ok("plain" if request.flavour == "stdlib" else "?"))
    async with (
        working(redis.url, numeric, flavours=("numeric",)),
        working(redis.url, plain, flavours=("stdlib",)),
        client(redis.url) as fabric,
    ):
        requests = [ExecRequest(code="x", flavour=flavour) for flavour in ("stdlib", "numeric") * 10]
        async with asyncio.timeout(PATIENCE_S):
            found = {index: outcome async for index, outcome in fabric.run_batch(requests)}
    assert [found[n].stdout for n in range(20)] == ["plain", "numeric"] * 10


async def test_a_flavour_is_chosen_among_those_that_live_workers_offer(redis: RedisServer) -> None:
    def tell(request: ExecRequest) -> Any:
        return ok(request.flavour)

    async with client(redis.url) as fabric:
        plain, numeric = (ExecRequest(code=code, flavour="auto") for code in ("1", "import numpy"))
        async with working(redis.url, FakeSandbox(tell), flavours=("stdlib",)):
            await fabric.workers()
            assert (await fabric.run(numeric)).stdout == "stdlib"
            async with working(redis.url, FakeSandbox(tell), flavours=("numeric",)):
                await fabric.workers()
                assert (await fabric.run(numeric)).stdout == "numeric"
                assert (await fabric.run(plain)).stdout == "stdlib"
        with sandbox_error("unknown_flavour", "unknown flavour 'rust'", retryable=False):
            await fabric.run(ExecRequest(code="1", flavour="rust"))


async def test_a_worker_holds_little_more_than_it_can_run(redis: RedisServer, programs: Programs) -> None:
    """Two idle workers share what one of them could have hoarded."""
    async with (
        working(redis.url, programs, capacity=2, prefetch=1) as first,
        client(redis.url, entry_calls=4) as fabric,
    ):
        running = asyncio.create_task(gather(fabric, ["wait door"] * 40))
        await until(lambda: first._waiting >= 3)
        async with working(redis.url, programs, capacity=2, prefetch=1) as second:
            await until(lambda: second._waiting >= 3)
            assert first._waiting < 3 + 4
            assert second._waiting < 3 + 4
            programs.open("door")
            assert len(await running) == 40
    assert programs.runs["wait door"] == 40


async def test_errors_of_the_sandbox_arrive_typed(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs), client(redis.url) as fabric:
        with sandbox_error("unknown_flavour", "planned", retryable=False):
            await fabric.run(ExecRequest(code="fail unknown_flavour 9"))
    assert programs.runs["fail unknown_flavour 9"] == 1


async def test_retryable_errors_are_tried_again_and_not_for_ever(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs), client(redis.url, max_attempts=3) as fabric:
        assert await fabric.run(ExecRequest(code="fail zygote_died 2")) == ok("zygote_died 2")
        assert await fabric.run(ExecRequest(code="fail closed 1")) == ok("closed 1")
        with sandbox_error("supervisor_died", "planned", retryable=True):
            await fabric.run(ExecRequest(code="fail supervisor_died 3"))
        assert fabric.counters()["retries"] == 5
    assert programs.runs == {"fail zygote_died 2": 3, "fail closed 1": 2, "fail supervisor_died 3": 3}


async def test_a_deadline_ends_the_call_here_and_there(redis: RedisServer, programs: Programs) -> None:
    loop = asyncio.get_running_loop()
    async with working(redis.url, programs, capacity=8), client(redis.url) as fabric:
        with sandbox_error("deadline"):
            await fabric.run(ExecRequest(code="wait never"), deadline=loop.time() + 0.2)
        outcomes = await gather(fabric, ["wait never", "say 1", "wait never"], deadline=loop.time() + 0.5)
        kinds = [getattr(outcomes[n], "kind", "result") for n in range(3)]
        assert kinds == ["deadline", "result", "deadline"]
        assert fabric.counters()["deadlines"] == 3
        assert len(fabric._open_calls.calls) == 0
        await until(lambda: redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "0\n", "the entries are gone")
    assert programs.ended["wait never"] == 0


async def test_a_deadline_counts_whoever_says_it_first(
    redis: RedisServer, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the worker, for this client's own clocks never ring."""

    class Patient:
        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        @staticmethod
        def timeout_at(deadline: float | None) -> Any:
            return asyncio.timeout(None)

    loop = asyncio.get_running_loop()
    async with working(redis.url, programs, capacity=8), client(redis.url) as fabric:
        monkeypatch.setattr(client_module, "asyncio", Patient())
        with sandbox_error("deadline"):
            await fabric.run(ExecRequest(code="wait never"), deadline=loop.time() + 0.2)
        outcomes = await gather(fabric, ["wait never", "say 1"], deadline=loop.time() + 0.5)
        assert outcomes[0].kind == "deadline"
        assert fabric.counters()["deadlines"] == 2


async def test_a_deadline_that_has_passed_sends_nothing(redis: RedisServer) -> None:
    loop = asyncio.get_running_loop()
    async with client(redis.url) as fabric:
        with pytest.raises(SandboxError) as caught:
            await fabric.run(say(1), deadline=loop.time())
        outcomes = await gather(fabric, ["say 1", "say 2"], deadline=loop.time() - 1)
        assert [caught.value.kind, outcomes[0].kind, outcomes[1].kind] == ["deadline"] * 3
        assert fabric.counters()["entries"] == 0


async def test_without_a_worker_the_deadline_still_ends_the_call(redis: RedisServer) -> None:
    async with client(redis.url) as fabric:
        with pytest.raises(SandboxError) as caught:
            await fabric.run(say(1), deadline=asyncio.get_running_loop().time() + 0.1)
    assert caught.value.kind == "deadline"
    assert redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "0\n"


async def test_expired_calls_are_not_run(redis: RedisServer, programs: Programs) -> None:
    """Even when the client is too late to take them back: here it stands still while the deadline passes."""
    async with client(redis.url) as fabric:
        deadline = asyncio.get_running_loop().time() + 0.2
        call = asyncio.create_task(fabric.run(say(1), deadline=deadline))
        await until(lambda: fabric.counters()["entries"] == 1)
        fabric._sender.delete_abandoned = never
        with pytest.raises(SandboxError):
            await call
        async with working(redis.url, programs) as worker:
            await until(lambda: worker.counters().get("expired_calls") == 1)
    assert not programs.runs


async def never() -> None:
    """What the client would have told Redis is not told."""


async def test_a_cancelled_call_stops_running(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs) as worker, client(redis.url) as fabric:
        call = asyncio.create_task(fabric.run(ExecRequest(code="wait never")))
        await until(lambda: programs.runs["wait never"] == 1)
        call.cancel()
        await until(lambda: programs.cancelled["wait never"] == 1)
        await until(lambda: worker._waiting == 0)
        assert worker.counters()["abandoned"] == 1
        assert fabric.counters()["cancelled"] == 1
        assert await fabric.run(say(1)) == ok("1")


async def test_a_closed_batch_stops_running_and_waiting(redis: RedisServer, programs: Programs) -> None:
    async with (
        working(redis.url, programs, capacity=2, prefetch=0) as worker,
        client(redis.url, entry_calls=4) as fabric,
    ):
        outcomes = fabric.run_batch([say(0), *[ExecRequest(code="wait never")] * 30])
        assert await anext(outcomes) == (0, ok("0"))
        await outcomes.aclose()
        await until(lambda: worker._waiting == 0)
        await until(lambda: redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "0\n")
        assert len(fabric._open_calls.calls) == 0
    assert programs.runs["wait never"] < 30
    assert programs.ended["wait never"] == 0


async def test_one_cancelled_call_of_an_entry_leaves_the_others_alone(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs), client(redis.url) as fabric:
        calls = [asyncio.create_task(fabric.run(ExecRequest(code=f"wait {n}"))) for n in "abc"]
        await until(lambda: len(programs.runs) == 3)
        calls[0].cancel()
        programs.open("b")
        assert await calls[1] == ok("b")
        programs.open("c")
        assert await calls[2] == ok("c")
        await until(lambda: programs.cancelled["wait a"] == 1)  # once the others have ended
