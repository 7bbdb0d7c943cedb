"""Redis holds what nobody of ours wrote: it is refused and goes, and nobody ends of it."""

import asyncio
import json
import time
from typing import Any

import pytest
from redis import Redis

from rocstar.sandbox.fabric import wire
from rocstar.sandbox.fabric.redis_connection import PREFIX
from rocstar.sandbox.fabric.wire import Answer, WireCall, WorkerInfo, decode_workers, encode_worker
from rocstar.sandbox.types import ExecRequest, SandboxError
from tests.fakes.sandbox import ok

from .harness import Programs, RedisServer, client, encode_entry, gather, until, working

CALLS = f"{PREFIX}:calls:stdlib"
NESTED = b"[" * 200_000
HUGE = 10**400

CALL = WireCall(id=1, request=ExecRequest(code="say 1", flavour="stdlib"), remaining_s=1.0)
ENTRY = json.loads(encode_entry([CALL]))
ROW = ENTRY["calls"][0]


def entry(**changed: Any) -> dict[str, bytes]:
    return {"client": b"somebody", "calls": json.dumps({**ENTRY, **changed}).encode()}


def called(place: int, value: Any) -> dict[str, bytes]:
    return entry(calls=[[*ROW[:place], value, *ROW[place + 1 :]]])


ENTRIES = {
    "a client's name that is no text": {"client": b"\xff\xfe", "calls": b"{}"},
    "nested": {"client": b"somebody", "calls": NESTED},
    "an id that is a list": called(0, [1]),
    "an id that is a text": called(0, "one"),
    "an id beyond all numbers": called(0, HUGE),
    "an id below": called(0, -1),
    "a deadline that is a text": called(1, "soon"),
    "a deadline beyond all numbers": called(1, HUGE),
    "code that is a number": called(2, 5),
    "pieces that are not there": called(2, [0, 1]),
    "a limit beyond all numbers": entry(limits=[{**ENTRY["limits"][0], "wall_s": HUGE}]),
    "limits that are none": entry(limits=5),
    "files that are a list": entry(calls=[[*ROW, ["a"]]]),
    "sizes beyond all memory": entry(sizes=[1 << 50]),
    "sizes without pieces": entry(sizes=[5]),
    "one id twice": entry(calls=[ROW, ROW]),
}


@pytest.mark.parametrize("fields", ENTRIES.values(), ids=ENTRIES.keys())
async def test_an_entry_of_nobody_ends_no_worker(redis: RedisServer, programs: Programs, fields: Any) -> None:
    Redis(unix_socket_path=str(redis.socket)).xadd(CALLS, fields)
    async with working(redis.url, programs), client(redis.url) as fabric:
        assert await fabric.run(ExecRequest(code="say 2")) == ok("2")
        await until(lambda: redis.cli("xlen", CALLS) == "0\n")
    assert set(programs.runs) <= {"say 2", "say 1"}


def written(outcome: Any) -> Any:
    return json.loads(wire.encode_answers([Answer(ref="stdlib/1-0", call_id=1, outcome=outcome)])[0])


RESULT, FAILURE = written(ok("1")), written(SandboxError("no", kind="fabric", retryable=True))
NAMES = RESULT["fields"]


def result(name: str, value: Any) -> dict[str, bytes]:
    place = 2 + NAMES.index(name)
    row = RESULT["results"][0]
    return {"answers": json.dumps({**RESULT, "results": [[*row[:place], value, *row[place + 1 :]]]}).encode()}


def failure(place: int, value: Any) -> dict[str, bytes]:
    row = FAILURE["errors"][0]
    return {"answers": json.dumps({**FAILURE, "errors": [[*row[:place], value, *row[place + 1 :]]]}).encode()}


ANSWERS = {
    "no answers": {"else": b"1"},
    "nested": {"answers": NESTED},
    "a ref that is a list": {"answers": json.dumps({**RESULT, "refs": [[1]]}).encode()},
    "an id that is a list": failure(1, [1]),
    "a kind that is a list": failure(3, [1]),
    "text that is a number": failure(2, 5),
    "output that is a number": result("stdout", 5),
    "a time that is a text": result("wall_s", "1"),
    "a time that is none": result("wall_s", float("nan")),
    "a time without end": result("wall_s", float("inf")),
    "files that are a list": result("files", ["a"]),
    "displays that are a number": result("displays", 5),
    "memory that is a text": result("peak_memory_bytes", "1"),
    "sizes beyond all memory": {"answers": json.dumps({**RESULT, "sizes": [1 << 50]}).encode()},
}


@pytest.mark.parametrize("fields", ANSWERS.values(), ids=ANSWERS.keys())
async def test_answers_of_nobody_end_no_client(redis: RedisServer, programs: Programs, fields: Any) -> None:
    """The call that they name is one that waits."""
    async with client(redis.url) as fabric:
        call = asyncio.create_task(fabric.run(ExecRequest(code="say 1")))
        await until(lambda: fabric.counters()["entries"] == 1)
        (lease,) = redis.cli("keys", "*:client:*").split()
        direct = Redis(unix_socket_path=str(redis.socket))
        direct.xadd(lease.replace(":client:", ":reply:"), fields)
        await until(lambda: fabric.counters()["unreadable"] == 1)
        async with working(redis.url, programs):
            assert await call == ok("1")


async def test_a_reply_stream_that_is_none_holds_up_nobody_else(redis: RedisServer, programs: Programs) -> None:
    """Answers of several clients are stored in one step."""
    async with client(redis.url) as harmed, working(redis.url, programs) as worker:
        lost = asyncio.create_task(harmed.run(ExecRequest(code="wait door")))
        await until(lambda: programs.runs["wait door"] == 1)
        (lease,) = redis.cli("keys", "*:client:*").split()
        redis.cli("set", lease.replace(":client:", ":reply:"), "nonsense")
        programs.open("door")
        await until(lambda: programs.ended["wait door"] == 1)
        async with client(redis.url) as fabric:
            outcomes = await gather(fabric, [f"say {n}" for n in range(8)])
            assert outcomes == {n: ok(str(n)) for n in range(8)}
        await until(lambda: worker._waiting == 0 and redis.cli("xlen", CALLS) == "0\n")
        lost.cancel()


KNOWN = WorkerInfo(name="a", capacity=3, flavours=("stdlib",))
FIELDS = json.loads(encode_worker(KNOWN))
MEMBERS = {
    "capacity that is a text": {**FIELDS, "capacity": "many"},
    "no capacity": {**FIELDS, "capacity": 0},
    "capacity below": {**FIELDS, "capacity": -5},
    "capacity beyond all machines": {**FIELDS, "capacity": 1 << 40},
    "flavours that are lists": {**FIELDS, "flavours": [["stdlib"]]},
    "flavours that are a text": {**FIELDS, "flavours": "stdlib"},
    "a flavour that nobody knows": {**FIELDS, "flavours": ["fortran"]},
    "a name that is a number": {**FIELDS, "name": 5},
}


@pytest.mark.parametrize("fields", MEMBERS.values(), ids=MEMBERS.keys())
def test_workers_of_nobody_are_left_out(fields: Any) -> None:
    garbage = (json.dumps(fields).encode(), NESTED, b"{}", b"[1]", b"nonsense")
    assert decode_workers([*garbage, encode_worker(KNOWN).encode()]) == [KNOWN]


async def test_a_list_of_workers_that_nobody_wrote_ends_no_client(redis: RedisServer, programs: Programs) -> None:
    members = [json.dumps(fields) for fields in MEMBERS.values()]
    direct = Redis(unix_socket_path=str(redis.socket))
    direct.zadd(f"{PREFIX}:workers", dict.fromkeys([*members, NESTED.decode()], time.time() + 9999))
    async with working(redis.url, programs, capacity=2), client(redis.url) as fabric:
        assert await fabric.run(ExecRequest(code="say 1")) == ok("1")
        assert fabric.capacity == 2
