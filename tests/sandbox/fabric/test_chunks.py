"""However long a program or a result is: no command to Redis and no turn of a loop carries all of it."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rocstar.sandbox.fabric import wire
from rocstar.sandbox.fabric.chunks import CHUNK_BYTES, ChunkJoiner, ChunkSplitter
from rocstar.sandbox.fabric.redis_connection import PREFIX
from rocstar.sandbox.fabric.wire import LIGHT
from rocstar.sandbox.types import ExecRequest, SandboxError
from tests.fakes.sandbox import FakeSandbox, ok

from ..errors import sandbox_error
from .harness import Programs, RedisServer, client, gather, redis_server, until, working

FILE = bytes(range(256)) * (5 * CHUNK_BYTES // 256)
CODE = "é漢" * CHUNK_BYTES


class Watched:
    """What this thread reads and writes itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self.beside = 0
        here = threading.get_ident()

        def saw(size: int) -> None:
            if threading.get_ident() == here:
                self.most = max(self.most, size)
            else:
                self.beside += size

        def watch(owner: Any, name: str, size_of: Callable[[Any, Any], int]) -> None:
            function = getattr(owner, name)

            def watched(*given: Any) -> Any:
                found = function(*given)
                saw(size_of(given, found))
                return found

            monkeypatch.setattr(owner, name, watched)

        watch(wire, "_dump", lambda given, found: len(found))
        watch(wire, "_load", lambda given, found: len(given[0]))
        watch(ChunkSplitter, "text", lambda given, found: len(given[1]))
        watch(ChunkSplitter, "content", lambda given, found: len(given[1]))
        watch(ChunkJoiner, "unpack", lambda given, found: len(found))


@pytest.fixture
def narrow_redis() -> Any:
    """It refuses values that are larger than a chunk."""
    with redis_server("--proto-max-bulk-len", str(CHUNK_BYTES)) as server:
        yield server


def left(redis: Any) -> str:
    return redis.cli("keys", f"{PREFIX}:pieces:*").strip()


async def test_what_is_long_goes_in_pieces_and_beside_the_loop(
    narrow_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = replace(ok("\ud800" * CHUNK_BYTES, value=CODE), files={"f": FILE})
    seen: list[ExecRequest] = []

    def act(request: ExecRequest) -> Any:
        seen.append(request)
        return result

    request = ExecRequest(code=CODE, stdin="x" * CHUNK_BYTES, files={"a": FILE, "b": b"b"}, flavour="stdlib")
    watched = Watched(monkeypatch)
    async with working(narrow_redis.url, FakeSandbox(act)), client(narrow_redis.url) as fabric:
        assert await fabric.run(request) == result
        await until(lambda: left(narrow_redis) == "")
        for _ in range(2):  # the first audit may have begun before the answer
            await until(lambda before=fabric._receiver.counted_at: fabric._receiver.counted_at > before)
        assert not fabric._sender.chunks, "each would be renewed for ever"
    assert seen == [request]
    assert watched.most < LIGHT
    assert watched.beside > 2 * (len(CODE) + len(FILE)), "both ways"


async def test_a_long_call_that_is_cancelled_leaves_nothing(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        waiting = fabric.run_batch([ExecRequest(code="wait " + CODE, flavour="stdlib")])
        reading = asyncio.ensure_future(anext(waiting))
        await until(lambda: fabric.counters()["entries"] == 1)
        assert left(redis)
        reading.cancel()
        await until(lambda: left(redis) == "")


async def test_a_long_call_whose_pieces_are_lost_is_tried_again(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        call = asyncio.create_task(fabric.run(ExecRequest(code="say " + CODE, flavour="stdlib")))
        await until(lambda: fabric.counters()["entries"] == 1)
        redis.cli("del", *left(redis).split())
        async with working(redis.url, programs):
            assert await call == ok(CODE)
            assert fabric.counters()["retries"] == 1


async def test_a_long_result_whose_pieces_are_lost_is_asked_for_again(redis: RedisServer, programs: Programs) -> None:
    async with working(redis.url, programs) as worker, client(redis.url) as fabric:
        store = worker._redis.store

        async def lose(*storing: Any) -> None:
            if not fabric.counters()["unreadable"]:
                redis.cli("del", *left(redis).split())
            await store(*storing)

        worker._redis.store = lose
        assert await fabric.run(ExecRequest(code="say " + CODE, flavour="stdlib")) == ok(CODE)
        assert fabric.counters()["unreadable"] == fabric.counters()["lost_entries"] == 1
    assert programs.runs["say " + CODE] == 2


async def test_a_result_beyond_all_bounds_is_an_error_of_its_own_call(
    redis: RedisServer, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocstar.sandbox.fabric.pending_answers.MAX_MESSAGE_BYTES", CHUNK_BYTES)
    async with working(redis.url, programs), client(redis.url) as fabric:
        with pytest.raises(SandboxError, match="output_bytes") as caught:
            await fabric.run(ExecRequest(code="say " + CODE, flavour="stdlib"))
        assert not caught.value.retryable
        assert await fabric.run(ExecRequest(code="say 1")) == ok("1")


async def test_redis_has_no_memory_for_a_long_program(redis: RedisServer, programs: Programs) -> None:
    async with client(redis.url) as fabric:
        redis.cli("config", "set", "maxmemory", "1")
        with sandbox_error("full", "out of memory", retryable=True):
            await fabric.run(ExecRequest(code="say " + CODE, flavour="stdlib"))


@pytest.mark.parametrize("result", [ok("1"), ok(CODE)], ids=["short", "long"])
async def test_redis_that_is_full_is_emptied_by_answers(redis: RedisServer, result: Any) -> None:
    """An answer frees more than it takes, but for a long result: that is an error, and others have theirs."""

    def act(request: ExecRequest) -> Any:
        redis.cli("config", "set", "maxmemory", "1")
        return result

    async with working(redis.url, FakeSandbox(act)), client(redis.url, max_attempts=1) as fabric:
        (outcome,) = (await gather(fabric, ["1"])).values()
        assert outcome == result or (outcome.kind, outcome.retryable, result) == ("full", True, ok(CODE))
        assert left(redis) == ""
