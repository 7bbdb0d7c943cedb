"""Owners of requests: token files, separate keys and sessions, and shares of each budget."""

import asyncio
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.guard import RUN_HEADER, TOKEN_VARIABLE, Owner, Owners, authenticate, load_owners
from rocstar.sandbox.types import ExecRequest
from tests.fakes.sandbox import FakeSandbox, ok

from ...patience import PATIENCE_S
from .conftest import HeldSandbox, request_bytes
from .conftest import until as until_true

ONE, TWO = "0123456789abcdef-one", "0123456789abcdef-two"
OWNERS = Owners((Owner(name="one", token=ONE), Owner(name="two", token=TWO, weight=3)))


def by(token: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **{name.replace("_", "-"): text for name, text in more.items()}}


def written(path: Path, text: str) -> str:
    file = path / "tokens"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    return str(file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o600])
def test_a_file_that_others_can_read_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int
) -> None:
    path = written(tmp_path, f"{ONE}\n")
    Path(path).chmod(mode)
    assert load_owners(path, {})
    told = capsys.readouterr().err
    assert told == ("" if mode == 0o600 else f"rocstar: others can read {path}: chmod 600 {path}\n")


def test_a_file_names_owners_their_tokens_and_weights(tmp_path: Path) -> None:
    path = written(tmp_path, f"# who may call\none {ONE}\n\ntwo {TWO} 3  # twice\n")
    assert load_owners(path, {}) == OWNERS
    assert OWNERS.weights() == {"one": 1, "two": 3}


def test_a_file_of_one_word_is_a_token(tmp_path: Path) -> None:
    assert load_owners(written(tmp_path, f"\ufeff{ONE}\r\n"), {}).known[0].token == ONE
    assert load_owners(written(tmp_path, f"{ONE}\n"), {}) == Owners((Owner(name="", token=ONE),))
    environment = {TOKEN_VARIABLE: ONE}
    assert load_owners(None, environment, TOKEN_VARIABLE).known[0].token == ONE and not environment
    assert not load_owners(None, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("short", "at least 16"),
        (f"{ONE}\n{TWO}", "41 characters|at least 16"),
        ("one short", "line 1 has 5 characters"),
        (f"one {ONE}\none {TWO}", "name of 'one' twice"),
        (f"one {ONE}\ntwo {ONE}", "token of 'two' twice"),
        (f"one {ONE} 0", "weight '0'"),
        (f"one {ONE} much", "weight 'much'"),
        (f"one {ONE} 1 2", "has 4 words"),
        (f"one {ONE}\n{TWO}", "line 2, has 1 words"),
        ("", "at least 16"),
        (f"b\udcf6b {ONE}", "tokens, line 1, "),
        ("\udcff\udcfe0\0" * 9, "the token in .*tokens has"),
    ],
)
def test_a_file_that_is_no_use_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_owners(written(tmp_path, text), {})


POSTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/run", {"code": "x"}),
    ("/v1/batch", {"requests": [{"code": "x"}]}),
    ("/run", {"type": "python", "solution": "x"}),
    ("/judge/long-batch", {"submissions": [{"type": "python", "solution": "x"}]}),
    ("/run_code", {"code": "x", "language": "python"}),
    ("/run_jupyter", {"cells": ["x"]}),
]


@pytest.mark.parametrize(("path", "body"), POSTS)
async def test_every_call_is_its_tokens_owners(serve: Any, path: str, body: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, owners=OWNERS) as service:
        for token in (ONE, TWO):  # the name of a run says nothing beside a token
            assert (await service.post(path, body, headers=by(token, Rocstar_Run="other")))[0] == 200
        assert (await service.post(path, body, headers=by(ONE + "x")))[0] == 401
    assert [request.owner for request in fake.requests] == ["one", "two"]


async def test_without_tokens_a_run_is_the_owner(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake) as service:
        assert (await service.post("/v1/run", {"code": "x"}, headers={RUN_HEADER: "run-7"}))[0] == 200
        assert (await service.post("/v1/run", {"code": "x"}))[0] == 200
        status, answer = await service.post("/v1/run", {"code": "x"}, headers={RUN_HEADER: "a" * 65})
        assert (status, answer["error"]["field"]) == (400, RUN_HEADER)
    assert [request.owner for request in fake.requests] == ["run-7", ""]


async def test_a_full_service_has_room_for_who_has_less_than_its_share(serve: Any) -> None:
    held = HeldSandbox()
    async with serve(held, owners=OWNERS, max_calls=16) as service:
        batch = {"requests": [{"code": "x"}] * 10}
        flood = asyncio.create_task(service.post("/v1/batch", batch, headers=by(ONE)))
        await held.until_running(10)
        assert (await service.post("/v1/run", {"code": "x"}, headers=by(ONE)))[0] == 429
        few = asyncio.create_task(service.post("/v1/batch", {"requests": [{"code": "x"}] * 6}, headers=by(TWO)))
        await held.until_running(16)
        for task in (flood, few):
            task.cancel()
        await held.until_running(0)


async def test_bodies_of_one_owner_leave_room_for_anothers(serve: Any) -> None:
    held = HeldSandbox()
    async with serve(held, owners=OWNERS, max_held_bytes=16_000) as service:
        mine = asyncio.create_task(service.post("/v1/run", {"code": "x" * 9000}, headers=by(ONE)))
        await held.until_running(1)
        assert (await service.post("/v1/run", {"code": "x" * 2000}, headers=by(ONE)))[0] == 429
        other = asyncio.create_task(service.post("/v1/run", {"code": "x" * 5000}, headers=by(TWO)))
        await held.until_running(2)
        for task in (mine, other):
            task.cancel()
        await held.until_running(0)


async def test_a_key_is_its_owners(serve: Any) -> None:
    """Another owner with the same key gets another session."""
    fake = FakeSandbox(lambda request: ok(request.owner))
    async with serve(fake, owners=OWNERS) as service:
        key = {"Idempotency_Key": "k1"}
        opened = [await service.post("/v1/sessions", {}, headers=by(token, **key)) for token in (ONE, TWO)]
        assert opened[0][1]["id"] != opened[1][1]["id"]
        path = f"/v1/sessions/{opened[0][1]['id']}"
        status, answer = await service.post(f"{path}/run", {"code": "x"}, headers=by(TWO))
        assert (status, answer["error"]["reason"]) == (410, "unknown")
        async with service.http.delete(path, headers=by(TWO)) as refused:
            assert refused.status == 410
        assert (await service.post(f"{path}/run", {"code": "x"}, headers=by(ONE)))[1]["stdout"] == "one"
        for token in (ONE, TWO):
            status, answer = await service.post("/v1/run", {"code": "x"}, headers=by(token, Idempotency_Key="k2"))
            assert answer["stdout"] == ("one" if token == ONE else "two")


async def test_a_key_opens_another_session_once_the_first_is_gone(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake) as service:
        key = {"Idempotency-Key": "k1"}
        _, first = await service.post("/v1/sessions", {}, headers=key)
        async with service.http.delete(f"/v1/sessions/{first['id']}"):
            pass
        status, second = await service.post("/v1/sessions", {}, headers=key)
        assert status == 201 and second != first
        assert (await service.post("/v1/sessions", {}, headers=key))[1] == second


async def test_sessions_of_one_owner_do_not_take_anothers(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, owners=OWNERS, max_sessions=8) as service:
        _, mine = await service.post("/v1/sessions", {}, headers=by(TWO))
        for _ in range(20):
            assert (await service.post("/v1/sessions", {}, headers=by(ONE)))[0] == 201
        path = f"/v1/sessions/{mine['id']}/run"
        assert (await service.post(path, {"code": "x"}, headers=by(TWO)))[0] == 200
        assert len(service.service.sessions) == 6  # two more are kept for the other
    assert fake.requests == [ExecRequest(code="x", flavour="stdlib", owner="two")]


async def test_output_of_one_owner_shortens_none_of_anothers(serve: Any) -> None:
    """The outputs that wait for the rest of their batch have a budget, and are truncated beyond it."""
    gate = asyncio.Event()

    class Loud(FakeSandbox):
        async def run_batch(self, requests: Any, *, deadline: float | None = None) -> Any:
            for index, request in enumerate(requests):
                yield index, ok("x" * 50_000)
                if request.owner == "one" and index == 5:
                    await gate.wait()

    async with serve(Loud({}), owners=OWNERS, max_held_bytes=200_000) as service:
        many = {"requests": [{"code": "x"}] * 7}
        loud = asyncio.create_task(service.post("/v1/batch", many, headers=by(ONE)))
        async with asyncio.timeout(PATIENCE_S):
            while service.service.metrics.results["stdlib", "ok"] < 6:
                await service.get("/healthz")
        _, answer = await service.post("/v1/batch", {"requests": [{"code": "x"}]}, headers=by(TWO))
        assert [result["stdout_truncated"] for result in answer["results"]] == [False]
        gate.set()
        _, answer = await loud
        assert [result["stdout_truncated"] for result in answer["results"]] == [False] * 3 + [True] * 4


async def unread(service: Any, path: str, body: Any, headers: dict[str, str]) -> asyncio.StreamWriter:
    """A client that asks and takes nothing of the answer."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect(("127.0.0.1", service.port))
    number = len(service.service.connections) + 1
    _, writer = await asyncio.open_connection(sock=plain, limit=1024)
    await until_true(lambda: len(service.service.connections) >= number)
    writer.write(request_bytes(path, body, *(f"{name}: {text}" for name, text in headers.items())))
    for connection in service.service.connections._of.values():  # else the kernel would take a megabyte
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return writer


async def test_kept_answers_that_an_owner_does_not_take_cut_nothing_of_anothers(serve: Any, until: Any) -> None:
    """However many of them wait."""
    size = 16 << 20
    fake = FakeSandbox(lambda request: ok("x" * (size if request.code == "much" else 50_000)))
    async with serve(fake, owners=OWNERS, max_held_bytes=3 * size) as service:
        held = service.service.admission.held
        body, headers = {"code": "much"}, by(ONE, Idempotency_Key="k")
        assert (await service.post("/v1/run", body, headers=headers))[0] == 200
        clients = []
        while held.fits("one", 0):
            before = held.used_by("one")
            clients.append(await unread(service, "/v1/run", body, headers))
            await until(lambda before=before: held.used_by("one") >= before + size)
        assert (await service.post("/v1/run", body, headers=headers))[0] == 429
        for _ in range(2):
            status, answer = await service.post("/v1/run", {"code": "some"}, headers=by(TWO))
            assert (status, len(answer["stdout"])) == (200, 50_000)
        status, answer = await service.post("/v1/run", {"code": "other"}, headers=by(ONE))
        assert (status, len(answer["stdout"])) == (200, 4096)
        for writer in clients:
            writer.transport.abort()
        await until(lambda: not held.taken)
        assert (await service.post("/v1/run", body, headers=headers))[0] == 200
    assert [request.code for request in fake.requests].count("much") == 1


async def test_an_answer_that_is_not_taken_counts_though_it_is_not_long(serve: Any, until: Any) -> None:
    """On each of thousands of connections."""
    fake = FakeSandbox({}, otherwise=ok("x" * 900_000))
    async with serve(fake, max_held_bytes=1 << 22) as service:
        held, clients = service.service.admission.held, []
        while held.fits("", 0) and len(clients) < 64:
            clients.append(await unread(service, "/v1/run", {"code": "x"}, {}))
            await until(lambda: len(fake.requests) == len(clients))
            await asyncio.sleep(0)
        assert len((await service.post("/v1/run", {"code": "x"}))[1]["stdout"]) == 4096
        for writer in clients:
            writer.transport.abort()
        await until(lambda: not held.taken)


async def test_heads_have_an_end_as_well(serve: Any) -> None:
    """A batch of 65,536 programs that write 4,096 characters each, and of one that sleeps, is 2 MB."""
    fake = FakeSandbox({}, otherwise=ok("x" * 4000))
    async with serve(fake, max_held_bytes=20_000) as service:
        for _ in range(2):
            _, answer = await service.post("/v1/batch", {"requests": [{"code": "x"}] * 50})
            lengths = [len(result["stdout"]) for result in answer["results"]]
            assert set(lengths) == {0, 4000} and lengths.count(4000) < 20
            assert all(result["stdout_truncated"] for result in answer["results"] if not result["stdout"])
            assert service.service.admission.held.taken == 0


@pytest.mark.parametrize(
    ("headers", "host", "taken"),
    [
        ({"Origin": "http://evil:8088"}, "evil:8088", False),  # a name that points at loopback
        ({"Origin": "http://localhost:8088"}, "localhost:8088", True),
        ({"Origin": "http://[::1]:8088"}, "[::1]:8088", True),
        ({"Origin": "http://127.0.0.1:8088"}, "localhost:8088", False),
        ({"Origin": "https://localhost:8088"}, "localhost:8088", False),
        ({"Origin": "http://localhost.evil"}, "localhost.evil", False),
        ({"Origin": "http://[::1"}, "[::1", False),
        ({"Origin": "http://"}, "", False),
        ({}, "127.0.0.1:8088", True),
        ({}, "service.localhost", True),
        ({}, "evil.example", False),
        ({}, "localhost.evil.example:8088", False),
        ({"Sec-Fetch-Site": "same-origin"}, "localhost:8088", True),
        ({"Sec-Fetch-Site": "none"}, "localhost:8088", True),
        ({"Sec-Fetch-Site": "cross-site"}, "localhost:8088", False),
        ({"Sec-Fetch-Site": "same-site"}, "localhost:8088", False),
    ],
)
def test_whose_page_it_is(headers: dict[str, str], host: str, taken: bool) -> None:
    with nullcontext() if taken else pytest.raises(RequestError):
        authenticate(Owners(), headers, host)
