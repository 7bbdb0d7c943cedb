"""Redis holds what nobody of ours wrote: it is refused and goes, and nobody ends of it."""

import asyncio
import json
import time
from typing import Any

import pytest
from msgspec import msgpack
from redis import Redis

from rocstar.sandbox.fabric import wire
from rocstar.sandbox.fabric.redis_connection import PREFIX
from rocstar.sandbox.fabric.wire import Answer, WireCall, WorkerInfo, decode_workers, encode_worker
from rocstar.sandbox.types import ExecRequest, SandboxError
from tests.fakes.sandbox import ok

from .harness import Programs, RedisServer, client, encode_entry, gather, until, working

CALLS = f"{PREFIX}:calls:stdlib"
NESTED, NESTED_JSON = b"\x91" * 200_000, "[" * 200_000

CALL = WireCall(id=1, request=ExecRequest(code="say 1", flavour="stdlib", files={"a": b"x"}), remaining_s=1.0)
ENTRY = msgpack.decode(encode_entry([CALL]))
ROW = ENTRY["calls"][0]


def entry(**changed: Any) -> dict[str, bytes]:
    return {"client": b"somebody", "calls": msgpack.encode({**ENTRY, **changed})}


def called(place: int, value: Any) -> dict[str, bytes]:
    return entry(calls=[[*ROW[:place], value, *ROW[place + 1 :]]])


def requested(**changed: Any) -> dict[str, bytes]:
    return called(2, {**ROW[2], **changed})


ENTRIES = {
    "a client's name that is no text": {"client": b"\xff\xfe", "calls": b"{}"},
    "nested": {"client": b"somebody", "calls": NESTED},
    "an id that is a list": called(0, [1]),
    "an id that is a text": called(0, "one"),
    "an id below": called(0, -1),
    "a deadline that is a text": called(1, "soon"),
    "a deadline that is none": called(1, float("nan")),
    "a request that is a number": called(2, 5),
    "code that is a number": requested(code=5),
    "pieces that are not there": requested(code=msgpack.Ext(2, bytes(8))),
    "an extension of another length": requested(code=msgpack.Ext(2, b"1")),
    "an extension that is none": requested(code=msgpack.Ext(9, bytes(8))),
    "a limit beyond all numbers": requested(limits={"wall_s": float("inf")}),
    "limits that are none": requested(limits=5),
    "files that are a list": requested(files=["a"]),
    "an owner that is a list": requested(owner=["a"]),
    "sizes beyond all memory": entry(sizes=[1 << 50]),
    "sizes without pieces": entry(sizes=[5]),
    "no calls": entry(calls=[]),
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
    return msgpack.decode(wire.encode_answers([Answer(ref="stdlib/1-0", call_id=1, outcome=outcome)])[0])


RESULT, FAILURE = written(ok("1")), written(SandboxError("no", kind="fabric", retryable=True))


def answered(message: Any, kind: str, *row: Any) -> dict[str, bytes]:
    return {"answers": msgpack.encode({**message, kind: [row]})}


def result(name: str, value: Any) -> dict[str, bytes]:
    ref, call_id, fields = RESULT["results"][0]
    return answered(RESULT, "results", ref, call_id, {**fields, name: value})


def failure(*error: Any, call_id: Any = 1) -> dict[str, bytes]:
    return answered(FAILURE, "errors", "stdlib/1-0", call_id, error)


ANSWERS = {
    "no answers": {"else": b"1"},
    "nested": {"answers": NESTED},
    "a ref that is a list": answered(RESULT, "results", [1], *RESULT["results"][0][1:]),
    "an id that is a list": failure("no", "fabric", True, call_id=[1]),
    "a kind that is a list": failure("no", [1], True),
    "text that is a number": failure(5, "fabric", True),
    "an error that is a number": answered(FAILURE, "errors", "stdlib/1-0", 1, 5),
    "output that is a number": result("stdout", 5),
    "a time that is a text": result("wall_s", "1"),
    "a time that is none": result("wall_s", float("nan")),
    "a time without end": result("wall_s", float("inf")),
    "a time below": result("cpu_s", -1.0),
    "files that are a list": result("files", ["a"]),
    "displays that are a number": result("displays", 5),
    "memory that is a text": result("peak_memory_bytes", "1"),
    "a status that is none": result("status", "well"),
    "sizes beyond all memory": {"answers": msgpack.encode({**RESULT, "sizes": [1 << 50]})},
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
    garbage = (json.dumps(fields).encode(), NESTED_JSON.encode(), b"{}", b"[1]", b"nonsense")
    assert decode_workers([*garbage, encode_worker(KNOWN).encode()]) == [KNOWN]


async def test_a_list_of_workers_that_nobody_wrote_ends_no_client(redis: RedisServer, programs: Programs) -> None:
    members = [json.dumps(fields) for fields in MEMBERS.values()]
    direct = Redis(unix_socket_path=str(redis.socket))
    direct.zadd(f"{PREFIX}:workers", dict.fromkeys([*members, NESTED_JSON], time.time() + 9999))
    async with working(redis.url, programs, capacity=2), client(redis.url) as fabric:
        assert await fabric.run(ExecRequest(code="say 1")) == ok("1")
        assert fabric.capacity == 2
