"""Idempotency keys: one execution per key, its budget, and the stored responses."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.http.responses import HttpResponse
from rocstar.sandbox.service.idempotency import FORGOTTEN_AT_ONCE, Execution, IdempotencyStore, owner_key
from rocstar.sandbox.types import SandboxError
from tests.fakes.sandbox import FakeSandbox, ok

from ...patience import PATIENCE_S
from .conftest import HeldSandbox, request_bytes

KEY = {"Idempotency-Key": "k1"}


def numbered() -> HeldSandbox:
    """Each program prints its number."""
    sandbox = HeldSandbox(lambda request: ok(f"{len(sandbox.requests)}\n"))
    return sandbox


def free() -> HeldSandbox:
    sandbox = numbered()
    sandbox.gate.set()
    return sandbox


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/run", {"code": "x"}),
    ("/v1/batch", {"requests": [{"code": "x"}, {"code": "y"}]}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_retries_while_running_share_the_execution(serve: Any, until: Any, path: str, body: Any) -> None:
    sandbox = numbered()
    async with serve(sandbox) as service:
        waiting = [asyncio.create_task(service.post(path, body, headers=KEY)) for _ in range(5)]
        await until(lambda: sandbox.running)
        await until(lambda: service.service.keys.hits == 4)
        sandbox.gate.set()
        answers = await asyncio.gather(*waiting)
        assert all(answer == answers[0] for answer in answers)
        later = await service.post(path, body, headers=KEY)
    assert later == answers[0]
    assert len(sandbox.requests) == len(body.get("requests", [0]))


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_without_a_key_every_request_runs(serve: Any, path: str, body: Any) -> None:
    async with serve(free()) as service:
        assert await service.post(path, body) != await service.post(path, body)


async def test_a_key_for_another_request_is_a_422(serve: Any) -> None:
    sandbox = free()
    async with serve(sandbox) as service:
        assert (await service.post("/v1/run", {"code": "x"}, headers=KEY))[0] == 200
        for path, body in (("/v1/run", {"code": "y"}), ("/v1/batch", {"requests": [{"code": "x"}]})):
            status, answer = await service.post(path, body, headers=KEY)
            assert (status, answer["error"]["kind"]) == (422, "idempotency_key_reused")
    assert len(sandbox.requests) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
async def test_a_key_must_be_usable(serve: Any, key: str) -> None:
    async with serve(numbered()) as service:
        status, answer = await service.post("/v1/run", {"code": "x"}, headers={"Idempotency-Key": key})
    assert (status, answer["error"]["field"]) == (400, "Idempotency-Key")


async def test_a_client_that_lost_its_connection_finds_its_execution_again(serve: Any, until: Any) -> None:
    sandbox = numbered()
    async with serve(sandbox) as service:
        _, writer = await service.send(request_bytes("/v1/run", {"code": "x"}, "Idempotency-Key: k1"))
        await until(lambda: sandbox.running)
        writer.close()
        await until(lambda: service.service.metrics.disconnects)
        assert sandbox.killed == 0
        again = asyncio.create_task(service.post("/v1/run", {"code": "x"}, headers=KEY))  # equal bytes
        await until(lambda: service.service.keys.hits)
        sandbox.gate.set()
        assert (await again)[1]["stdout"] == "1\n"
    assert len(sandbox.requests) == 1


@pytest.mark.parametrize(("path", "body"), [*BODIES, ("/v1/batch", {"requests": [{"code": "x"}], "stream": True})])
async def test_a_body_counts_as_held_until_its_execution_has_ended(
    serve: Any, until: Any, path: str, body: Any
) -> None:
    """Also when its client has disconnected."""
    sandbox = numbered()
    async with serve(sandbox) as service:
        body_reader, data = service.service._body_reader, json.dumps(body).encode()
        waiting = asyncio.create_task(service.post(path, data=data, headers=KEY))
        await until(lambda: sandbox.running)
        waiting.cancel()
        await until(lambda: service.service.metrics.disconnects)
        assert body_reader.held.taken == len(data)
        again = asyncio.create_task(service.http.post(path, data=data, headers=KEY))
        await until(lambda: service.service.keys.hits)
        assert body_reader.held.taken == 2 * len(data)
        sandbox.gate.set()
        async with await again as answer:
            assert answer.status == 200 and await answer.read()
        await until(lambda: not body_reader.held.taken)
        await service.post(path, data=data, headers=KEY) if "stream" not in body else None
        assert not body_reader.held.taken


async def test_an_execution_that_nobody_waits_for_ends_after_its_grace(serve: Any, until: Any) -> None:
    sandbox = numbered()
    async with serve(sandbox, idempotency_grace_s=0.01) as service:
        waiting = asyncio.create_task(service.post("/v1/run", {"code": "x"}, headers=KEY))
        await until(lambda: sandbox.running)
        waiting.cancel()
        await until(lambda: sandbox.killed)
        await asyncio.wait_for(service.service.admission.drained(), PATIENCE_S)
        sandbox.gate.set()
        assert (await service.post("/v1/run", {"code": "x"}, headers=KEY))[1]["stdout"] == "1\n"


async def test_neither_a_failure_of_ours_nor_a_refusal_is_kept(serve: Any) -> None:
    fake = FakeSandbox({"x": SandboxError("died", kind="zygote_died", retryable=True)})
    async with serve(fake) as service:
        for body, status in (({"code": "x"}, 503), ({"code": "x", "limits": {"wall_s": -1}}, 400)):
            assert (await service.post("/v1/run", body, headers=KEY))[0] == status
        fake.script = {"x": ok("1")}
        assert (await service.post("/v1/run", {"code": "x"}, headers=KEY))[0] == 200


async def test_a_stream_is_replayed_from_its_first_line(serve: Any, until: Any) -> None:
    class Stepwise(FakeSandbox):
        async def run_batch(self, requests: Any, *, deadline: float | None = None) -> Any:
            self.requests += requests
            for index in range(len(requests)):
                yield index, ok(str(index))
                if index == 0:
                    await gate.wait()

    gate = asyncio.Event()
    fake = Stepwise({})
    body = {"requests": [{"code": "a"}, {"code": "b"}, {"code": "c"}], "stream": True}

    async def lines(count: int) -> list[Any]:
        async with service.http.post("/v1/batch", json=body, headers=KEY) as answer:
            return [json.loads(await answer.content.readline()) for _ in range(count)]

    async with serve(fake) as service:
        assert [line["index"] for line in await lines(1)] == [0]  # and the connection is dropped
        second = asyncio.create_task(lines(3))
        await until(lambda: service.service.keys.hits)
        gate.set()
        assert [line["stdout"] for line in await second] == ["0", "1", "2"]
        assert await lines(3) == await second
    assert len(fake.requests) == 3


async def test_a_session_cell_runs_once_per_key(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok("1"))
    async with serve(fake) as service:
        _, opened = await service.post("/v1/sessions", {}, headers={"Idempotency-Key": "open"})
        assert (await service.post("/v1/sessions", {}, headers={"Idempotency-Key": "open"}))[1] == opened
        path = f"/v1/sessions/{opened['id']}/run"
        for _ in range(3):
            assert (await service.post(path, {"code": "x += 1"}, headers=KEY))[0] == 200
    assert fake.sessions[0].cells == ["x += 1"]
    assert len(fake.sessions) == 1


async def answer(_: Execution) -> HttpResponse:
    return HttpResponse(status=200, body=b"x" * 100)


async def test_kept_answers_are_bounded_in_number_and_bytes() -> None:
    store = IdempotencyStore(OwnerBudget(256 << 20), max_keys=3)
    for number in range(10):
        await store.run_once(str(number), b"f", answer)
    assert len(store) == 3
    store = IdempotencyStore(OwnerBudget(250))
    for number in range(10):
        await store.run_once(str(number), b"f", answer)
    assert len(store) == 2
    await store.run_once("9", b"f", answer)
    assert store.hits == 1


async def test_many_keys_of_one_owner_take_none_of_anothers() -> None:
    store = IdempotencyStore(OwnerBudget(256 << 20), max_keys=5)
    await store.run_once(owner_key("few", "mine"), b"f", answer)
    for number in range(50):
        await store.run_once(owner_key("many", str(number)), b"f", answer)
    await store.run_once(owner_key("few", "mine"), b"f", answer)
    assert len(store) == 5 and store.hits == 1


async def test_streams_of_one_owner_cut_nothing_of_anothers() -> None:
    """Even while it runs."""
    store, gate = IdempotencyStore(OwnerBudget(1000, {"one": 1, "two": 1})), asyncio.Event()
    said = asyncio.Event()

    async def much(execution: Execution) -> HttpResponse:
        execution.emit(b"x" * 2000)
        said.set()
        await gate.wait()
        return HttpResponse(status=200, body=b"")

    running = asyncio.create_task(store.run_once(owner_key("one", "k"), b"f", much))
    await said.wait()
    assert not store.streamed.fits("one", 0) and store.streamed.fits("two", 0)
    gate.set()
    await running
    assert store.streamed.fits("one", 0)


async def test_many_answers_whose_time_is_over_are_forgotten_a_few_at_a_time() -> None:
    """Removing 60,000 in one step would block the event loop for a tenth of a second."""
    store = IdempotencyStore(OwnerBudget(256 << 20), max_keys=10_000)
    for number in range(4 * FORGOTTEN_AT_ONCE):
        await store.run_once(str(number), b"f", answer)
    store.ttl_s, left = 0.0, len(store)
    # Another request with the first key, which has expired.
    asking = asyncio.create_task(store.run_once("0", b"another", answer))
    while len(store):
        await asyncio.sleep(0)
        assert left - len(store) <= 2 * FORGOTTEN_AT_ONCE
        left = len(store)
    assert (await asking).status == 200


async def test_an_owners_oldest_answer_is_not_looked_for_among_all() -> None:
    store = IdempotencyStore(OwnerBudget(300_000))
    for number in range(100):
        await store.run_once(owner_key("many", str(number)), b"f", answer)
    seen = 0

    class Counted(OrderedDict[str, Execution]):
        def __iter__(self) -> Iterator[str]:
            nonlocal seen
            for key in super().__iter__():
                seen += 1
                yield key

    async def large(_: Execution) -> HttpResponse:
        return HttpResponse(status=200, body=b"x" * 100_000)

    store._ended = Counted(store._ended)
    for number in range(20):
        await store.run_once(owner_key("few", str(number)), b"f", large)
        await asyncio.sleep(0)
    assert len(store) == 102 and seen < 100


async def test_an_exception_reaches_every_waiter_and_is_not_kept() -> None:
    store = IdempotencyStore(OwnerBudget(256 << 20))
    gate = asyncio.Event()

    async def refuse(_: Execution) -> HttpResponse:
        await gate.wait()
        raise RequestError("no", field="x")

    waiting = [asyncio.create_task(store.run_once("a", b"f", refuse)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(error) for error in found] == ["no"] * 3
    assert len(store) == 0


async def test_closing_ends_what_runs() -> None:
    store = IdempotencyStore(OwnerBudget(256 << 20))

    async def hang(_: Execution) -> HttpResponse:
        await asyncio.Event().wait()
        raise AssertionError

    waiting = asyncio.create_task(store.run_once("a", b"f", hang))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
