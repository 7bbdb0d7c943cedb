"""Workers and Redis die under load: no call is lost, none is answered twice, and nothing waits for ever."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rocstar.sandbox.fabric import RedisFabric, RedisWorker
from rocstar.sandbox.fabric.receiver import SMALLEST_WINDOW
from rocstar.sandbox.fabric.redis_commands import GROUP, REPLY_TTL_S
from rocstar.sandbox.fabric.redis_connection import PREFIX
from rocstar.sandbox.fabric.wire import Answer, encode_answers
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError
from tests.fakes.sandbox import ok

from ...patience import PATIENCE_S
from ..errors import sandbox_error
from .harness import Programs, RedisServer, client, dying, gather, until, worker_process, working


async def load(fabric: RedisFabric, batches: int, size: int = 32) -> AsyncIterator[dict[int, Any]]:
    """Batches one after the other, each answered completely and right."""
    for batch in range(batches):
        requests = [ExecRequest(code=f"print({batch}, {n})") for n in range(size)]
        outcomes: dict[int, Any] = {}
        async with asyncio.timeout(PATIENCE_S):
            async for index, outcome in fabric.run_batch(requests):
                assert index not in outcomes
                outcomes[index] = outcome
        for index in range(size):
            assert isinstance(outcomes[index], ExecResult), outcomes[index]
            assert outcomes[index].stdout == f"{batch} {index}\n"
        yield outcomes


async def complete(fabric: RedisFabric, batches: int, size: int = 32) -> int:
    return sum([len(outcomes) async for outcomes in load(fabric, batches, size)])


async def test_a_worker_process_is_killed_under_load(redis: RedisServer) -> None:
    with worker_process(redis.url) as first, worker_process(redis.url) as second:
        async with client(redis.url, audit_s=0.5) as fabric:
            jobs = [asyncio.create_task(complete(fabric, 5)) for _ in range(4)]
            await until(lambda: fabric.counters()["calls"] - len(fabric._open_calls.calls) > 100)
            first.send_signal(signal.SIGKILL)
            assert await asyncio.gather(*jobs) == [5 * 32] * 4
            assert len(fabric._open_calls.calls) == 0
            assert second.poll() is None
            assert fabric.counters()["calls"] == 4 * 5 * 32


async def test_a_worker_that_is_cut_off_loses_its_calls_to_another(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        async with dying(redis.url, programs, capacity=8):
            running = asyncio.create_task(gather(fabric, ["say 0", "wait door", "say 2"]))
            await until(lambda: programs.runs["wait door"] == 1)
            await until(lambda: len(fabric._open_calls.calls) == 1)
        programs.open("door")
        async with working(redis.url, programs, claim_idle_s=0.5) as worker:
            assert await running == {0: ok("0"), 1: ok("door"), 2: ok("2")}
            assert worker.counters()["reclaimed"] == 1
            assert worker.counters()["skipped_calls"] == 2
            await until(lambda: redis.cli("keys", "*:done:*").strip() == "")
    assert programs.runs == {"say 0": 1, "say 2": 1, "wait door": 2}


async def test_a_worker_with_a_long_queue_still_takes_over(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url, entry_calls=1) as fabric:
        async with dying(redis.url, programs, capacity=1, prefetch=0):
            call = asyncio.create_task(fabric.run(ExecRequest(code="wait door")))
            await until(lambda: programs.runs["wait door"] == 1)
        programs.open("door")
        queue = asyncio.create_task(gather(fabric, [f"nap {n}" for n in range(400)]))
        await until(lambda: fabric.counters()["entries"] >= SMALLEST_WINDOW)
        async with working(redis.url, programs, capacity=1, prefetch=0, claim_idle_s=0.5):
            assert await call == ok("door")
            assert not queue.done()
            queue.cancel()


async def test_an_entry_is_acknowledged_only_with_its_answers(redis: RedisServer, programs: Programs) -> None:
    """The worker dies between running the program and storing the result."""
    async with client(redis.url) as fabric:
        async with dying(redis.url, programs) as worker:
            worker._redis.store = never
            call = asyncio.create_task(fabric.run(ExecRequest(code="say 1")))
            await until(lambda: programs.ended["say 1"] == 1)
        assert redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "1\n"
        assert redis.cli("xpending", f"{PREFIX}:calls:stdlib", GROUP).startswith("1\n")
        async with working(redis.url, programs, claim_idle_s=0.5):
            assert await call == ok("1")
    assert programs.runs["say 1"] == 2


async def test_an_entry_is_gone_with_its_last_answer(redis: RedisServer) -> None:
    """Also when its batch takes a moment longer to end."""
    ends = asyncio.Event()

    class Lingering:
        async def run_batch(self, requests: Any, *, deadline: float | None = None) -> AsyncIterator[Any]:
            for index, _ in enumerate(requests):
                yield index, ok("1")
            await ends.wait()

    async with working(redis.url, Lingering()), client(redis.url) as fabric:
        assert await fabric.run(ExecRequest(code="say 1")) == ok("1")
        assert redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "0\n"
        ends.set()


async def never(*_: Any) -> None:
    await asyncio.Event().wait()


async def test_a_stopped_worker_hands_its_calls_back_at_once(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        async with working(redis.url, programs, claim_idle_s=3600.0):
            running = asyncio.create_task(gather(fabric, ["wait door", "say 1"]))
            await until(lambda: programs.runs["wait door"] == 1)
        programs.open("door")
        async with working(redis.url, programs, claim_idle_s=1800.0):
            assert await running == {0: ok("door"), 1: ok("1")}


async def test_a_stopping_worker_finishes_what_it_can(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        async with working(redis.url, programs, drain_s=20.0) as worker:
            call = asyncio.create_task(fabric.run(ExecRequest(code="wait door")))
            await until(lambda: programs.runs["wait door"] == 1)
            worker.stop()
            programs.open("door")
            assert await call == ok("door")
    assert programs.runs["wait door"] == 1


async def test_a_long_program_stays_with_its_worker(redis: RedisServer, programs: Programs) -> None:
    """Its heartbeat keeps the entry from a second worker that looks for silent ones all the time."""

    def looks() -> int:
        lines = redis.cli("info", "commandstats").splitlines()
        return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if "xautoclaim" in line)

    eager = {"heartbeat_s": 0.05, "claim_idle_s": 3.0}
    async with working(redis.url, programs, **eager) as first, client(redis.url) as fabric:
        call = asyncio.create_task(fabric.run(ExecRequest(code="wait door")))
        await until(lambda: programs.runs["wait door"] == 1)
        async with working(redis.url, programs, **eager) as second:
            before = looks()
            await until(lambda: looks() > before + 200, "more than three seconds of looking")
            assert second.counters()["reclaimed"] == first.counters()["reclaimed"] == 0
            programs.open("door")
            assert await call == ok("door")
    assert programs.runs["wait door"] == 1


async def test_a_worker_that_stood_still_does_no_harm(redis: RedisServer, programs: Programs) -> None:
    """Another took its entry over and both answer: the caller sees one result."""
    async with working(redis.url, programs, name="slow") as slow, client(redis.url) as fabric:
        beat = slow._redis.heartbeat
        slow._redis.heartbeat = never
        slow._redis.reclaim = never
        call = asyncio.create_task(fabric.run(ExecRequest(code="wait door")))
        await until(lambda: programs.runs["wait door"] == 1)
        await until(lambda: slow._waiting == 1)
        async with working(redis.url, programs, name="quick", claim_idle_s=0.5) as quick:
            await until(lambda: quick.counters()["reclaimed"] >= 1)
            await until(lambda: programs.runs["wait door"] == 2)
            programs.open("door")
            assert await call == ok("door")
            await until(lambda: fabric.counters()["late_answers"] == 1)
        slow._redis.heartbeat = beat
    assert programs.ended["wait door"] == 2


async def test_what_is_delivered_twice_is_settled_once(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs) as worker, client(redis.url) as fabric:
        store = worker._redis.store

        async def store_twice(*storing: Any) -> None:
            await store(*storing)
            await store(*storing)

        worker._redis.store = store_twice
        assert await gather(fabric, [f"say {n}" for n in range(40)]) == {n: ok(str(n)) for n in range(40)}
        await until(lambda: fabric.counters()["late_answers"] == 40)
        assert len(fabric._open_calls.calls) == 0


async def test_a_worker_that_stood_still_has_not_died(redis: RedisServer, programs: Programs) -> None:
    """It claims its own entry back, which counts as often as before: none fails of deaths that never were."""
    async with working(redis.url, programs) as worker, client(redis.url) as fabric:
        call = asyncio.create_task(fabric.run(ExecRequest(code="wait door")))
        await until(lambda: programs.runs["wait door"] == 1)
        (entry,) = worker._held.values()
        for _ in range(3):
            _, others = await worker._redis.reclaim("stdlib", 0.0, "0-0", {entry.ref: entry.deliveries})
            assert others == []
        pending = redis.cli("xpending", f"{PREFIX}:calls:stdlib", GROUP, "-", "+", "9").split()
        assert pending[0] == entry.stream_id and pending[-1] == "1"
        programs.open("door")
        assert await call == ok("door")
    assert programs.runs["wait door"] == 1


async def test_a_poison_entry_ends_with_an_error(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        call = asyncio.create_task(fabric.run(ExecRequest(code="wait never")))
        for deaths in range(1, 3):
            async with dying(redis.url, programs, claim_idle_s=0.1, heartbeat_s=0.05):
                await until(lambda deaths=deaths: programs.runs["wait never"] == deaths)
        async with working(redis.url, programs, max_deliveries=2, claim_idle_s=0.5) as worker:
            with sandbox_error("fabric", "2 workers died", retryable=False):
                await call
            assert worker.counters()["poisoned"] == 1
            assert await fabric.run(ExecRequest(code="say 1")) == ok("1")
        assert redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "0\n"
    assert programs.runs["wait never"] == 2


@pytest.mark.parametrize("durable", [False, True])
async def test_redis_is_killed_and_restarted_under_load(request: pytest.FixtureRequest, durable: bool) -> None:
    redis = request.getfixturevalue("durable_redis" if durable else "redis")
    with worker_process(redis.url), worker_process(redis.url):
        async with client(redis.url, audit_s=0.5) as fabric:
            jobs = [asyncio.create_task(complete(fabric, 5)) for _ in range(4)]
            for answered in (100, 300):
                await until(
                    lambda answered=answered: fabric.counters()["calls"] - len(fabric._open_calls.calls) > answered
                )
                redis.restart()
            assert await asyncio.gather(*jobs) == [5 * 32] * 4
            assert len(fabric._open_calls.calls) == 0
            assert fabric.counters()["reconnects"] >= 1


async def test_what_redis_forgot_is_sent_again(redis: RedisServer, programs: Programs) -> None:
    """Calls that wait, calls that run, and a consumer group: all gone, and only the client remembers."""
    async with client(redis.url, entry_calls=2) as fabric:
        waiting = asyncio.create_task(gather(fabric, [f"say {n}" for n in range(20)]))
        await until(lambda: fabric.counters()["entries"] >= 5)
        redis.restart()
        await until(lambda: fabric.counters()["lost_entries"] >= 5)
        async with working(redis.url, programs) as worker:
            assert await waiting == {n: ok(str(n)) for n in range(20)}
            running = asyncio.create_task(gather(fabric, ["wait door"]))
            await until(lambda: programs.runs["wait door"] == 1)
            redis.restart()
            await until(lambda: programs.runs["wait door"] == 2)
            programs.open("door")
            assert await running == {0: ok("door")}
            await until(lambda: worker._waiting == 0)
            assert await fabric.run(ExecRequest(code="say again")) == ok("again")


async def test_a_flushed_redis_is_noticed_without_a_broken_connection(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs, capacity=1, prefetch=0), client(redis.url) as fabric:
        waiting = asyncio.create_task(gather(fabric, ["wait door", *[f"say {n}" for n in range(30)]]))
        await until(lambda: programs.runs["wait door"] == 1)
        redis.cli("flushall")
        programs.open("door")
        assert len(await waiting) == 31


async def test_answers_that_get_lost_are_asked_for_again(redis: RedisServer, programs: Programs) -> None:
    """The reply stream is gone before the client has read it, although Redis never went away."""
    async with working(redis.url, programs), client(redis.url) as fabric:
        may_read, read = asyncio.Event(), fabric._redis.read

        async def read_later(cursor: str) -> Any:
            await may_read.wait()
            return await read(cursor)

        fabric._redis.read = read_later
        await fabric_is_between_reads(redis, until)
        call = asyncio.create_task(fabric.run(ExecRequest(code="say 1")))
        await until(lambda: programs.ended["say 1"] == 1)
        await until(lambda: redis.cli("xlen", f"{PREFIX}:calls:stdlib") == "0\n")
        await until(lambda: fabric._receiver._suspects, "the audit found that the entry is gone")
        assert fabric.counters()["lost_entries"] == 0, "the answer may still be read"
        redis.cli("del", *redis.cli("keys", "*:reply:*").split())
        await until(lambda: programs.runs["say 1"] == 2)
        may_read.set()
        assert await call == ok("1")
        assert fabric.counters()["lost_entries"] == 1


async def fabric_is_between_reads(redis: Any, until: Any) -> None:
    """The read that had begun before it was replaced has ended."""
    await until(lambda: "blocked_clients:1" in redis.cli("info", "clients"), "only the worker waits")


async def test_answers_of_a_foreign_version_do_not_stop_the_client(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        (lease,) = redis.cli("keys", "*:client:*").split()
        reply = lease.replace(":client:", ":reply:")
        redis.cli("xadd", reply, "*", "answers", "nonsense")
        strange, _ = encode_answers([Answer(ref="stdlib/9-9", call_id=77, outcome=ok())])
        redis.cli("xadd", reply, "*", "answers", last=strange)
        await until(lambda: fabric.counters()["unreadable"] == 1)
        await until(lambda: fabric.counters()["late_answers"] == 1)
        async with working(redis.url, programs):
            assert await fabric.run(ExecRequest(code="say 1")) == ok("1")
    assert REPLY_TTL_S > 60


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_redis_that_is_gone_for_good_is_an_error(
    redis: RedisServer, programs: Programs, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("rocstar.sandbox.fabric.redis_connection.ANSWER_TIMEOUT_S", 1.5)
    async with dying(redis.url, programs), client(redis.url, patience_s=0.5) as fabric:
        waiting = asyncio.create_task(gather(fabric, ["wait never"] * 2))
        await until(lambda: programs.runs["wait never"] == 2)
        getattr(redis, how)()
        outcomes = await waiting
        assert {(outcomes[n].kind, outcomes[n].retryable) for n in range(2)} == {("fabric", True)}
        assert f"Redis at unix://{redis.socket} has not served" in str(outcomes[0])
        with sandbox_error("fabric"):
            await fabric.run(ExecRequest(code="say 3"))
        with pytest.raises(SandboxError, match="does not answer"):
            await fabric.workers()
        assert len(fabric._open_calls.calls) == 0


async def test_without_workers_the_wait_ends_with_an_error(redis: RedisServer) -> None:
    async with client(redis.url, patience_s=0.3) as fabric:
        with sandbox_error("fabric", "no worker of flavour numeric", retryable=True):
            await fabric.run(ExecRequest(code="say 1", flavour="numeric"))
    assert redis.cli("xlen", f"{PREFIX}:calls:numeric") == "0\n"


async def test_a_redis_that_takes_no_writes_is_an_error(redis: RedisServer) -> None:
    """Reads go on, one a second, and would look like success."""
    async with client(redis.url, patience_s=1.5) as fabric:
        redis.cli("replicaof", "127.0.0.1", "1")
        with sandbox_error("fabric", "read only replica"):
            await fabric.run(ExecRequest(code="say 1"))


async def test_a_client_needs_redis_to_start(redis: RedisServer) -> None:
    redis.kill()
    with sandbox_error("fabric", "has not served this node", retryable=True):
        async with client(redis.url, patience_s=0.2):
            pass


async def test_a_worker_gives_up_on_a_redis_that_stays_away(redis: RedisServer, programs: Programs) -> None:
    worker = RedisWorker(redis.url, programs, 2, patience_s=0.3)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE_S):
        await worker.ready.wait()
        redis.kill()
        with pytest.raises(SandboxError, match="has not served this node") as caught:
            await running
    assert caught.value.kind == "fabric"
    with pytest.raises(SandboxError):
        await RedisWorker(redis.url, programs, 2, patience_s=0.1).run()


async def test_a_mistake_inside_ends_every_call(redis: RedisServer) -> None:
    """No caller waits for a client that has crashed, and the crash is not hidden."""

    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("planned")

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - the context's end raises it
        async with client(redis.url) as fabric:
            fabric._redis.enqueue = broken
            outcomes = await gather(fabric, ["say 1", "say 2"])
            assert {outcomes[n].kind for n in range(2)} == {"fabric"}
            with pytest.raises(SandboxError, match="the fabric client has failed"):
                await fabric.run(ExecRequest(code="say 3"))
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)
