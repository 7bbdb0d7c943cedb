"""Whose a request is, and that no owner's requests become another's or take what is kept for it."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox.http.guard import RUN_HEADER, TOKEN_VARIABLE, Owner, Owners, load_owners
from rocstar.sandbox.testing import FakeSandbox, ok
from rocstar.sandbox.types import ExecRequest

from ...patience import PATIENCE_S
from .conftest import until as until_true
from .test_guard import Hanging

ONE, TWO = "0123456789abcdef-one", "0123456789abcdef-two"
OWNERS = Owners((Owner(name="one", token=ONE), Owner(name="two", token=TWO, weight=3)))


def by(token: str, **more: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {token}",
        **{name.replace("_", "-"): text for name, text in more.items()},
    }


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
        for token in (ONE, TWO):
            assert (await service.post(path, body, headers=by(token)))[0] == 200
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


async def test_a_name_of_a_run_is_not_heard_where_tokens_tell(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, owners=OWNERS) as service:
        await service.post("/v1/run", {"code": "x"}, headers=by(ONE, Rocstar_Run="two"))
    assert fake.requests[0].owner == "one"


async def test_a_full_service_has_room_for_who_has_less_than_its_share(serve: Any) -> None:
    hanging = Hanging()
    async with serve(hanging, owners=OWNERS, max_calls=16) as service:
        batch = {"requests": [{"code": "x"}] * 10}
        flood = asyncio.create_task(service.post("/v1/batch", batch, headers=by(ONE)))
        await hanging.until_running(10)
        assert (await service.post("/v1/run", {"code": "x"}, headers=by(ONE)))[0] == 429
        few = asyncio.create_task(
            service.post("/v1/batch", {"requests": [{"code": "x"}] * 6}, headers=by(TWO))
        )
        await hanging.until_running(16)
        for task in (flood, few):
            task.cancel()
        await hanging.until_running(0)


async def test_bodies_of_one_owner_leave_room_for_anothers(serve: Any) -> None:
    hanging = Hanging()
    async with serve(hanging, owners=OWNERS, max_held_bytes=16_000) as service:
        held = asyncio.create_task(service.post("/v1/run", {"code": "x" * 9000}, headers=by(ONE)))
        await hanging.until_running(1)
        assert (await service.post("/v1/run", {"code": "x" * 2000}, headers=by(ONE)))[0] == 429
        other = asyncio.create_task(service.post("/v1/run", {"code": "x" * 5000}, headers=by(TWO)))
        await hanging.until_running(2)
        for task in (held, other):
            task.cancel()
        await hanging.until_running(0)


async def test_a_key_is_its_owners(serve: Any) -> None:
    """The second asker got the first one's session, and could read its variables."""
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
            status, answer = await service.post(
                "/v1/run", {"code": "x"}, headers=by(token, Idempotency_Key="k2")
            )
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


async def test_a_session_opens_as_its_owners(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, owners=OWNERS) as service:
        _, opened = await service.post("/v1/sessions", {}, headers=by(TWO))
        await service.post(f"/v1/sessions/{opened['id']}/run", {"code": "x"}, headers=by(TWO))
    assert fake.requests == [ExecRequest(code="x", flavour="stdlib", owner="two")]


async def test_output_of_one_owner_shortens_none_of_anothers(serve: Any) -> None:
    """What waits for its batch is bounded, and beyond that cut: another's output must not do that to mine."""
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
    sent = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(sent)}"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
    for connection in service.service.connections._of.values():  # else the kernel would take a megabyte
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return writer


async def test_kept_answers_that_an_owner_does_not_take_cut_nothing_of_anothers(
    serve: Any, until: Any
) -> None:
    """They were counted, however many they were, and then all others' outputs were cut to their heads."""
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
    """Up to a megabyte nothing was counted, on each of thousands of connections."""
    fake = FakeSandbox({}, otherwise=ok("x" * 900_000))
    async with serve(fake, max_held_bytes=1 << 22) as service:
        held, clients = service.service.admission.held, []
        for _ in range(64):
            if not held.fits("", 0):
                break
            clients.append(await unread(service, "/v1/run", {"code": "x"}, {}))
            number = len(fake.requests) + 1
            await until(lambda number=number: len(fake.requests) == number)
            await asyncio.sleep(0)
        assert not held.fits("", 0)
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
