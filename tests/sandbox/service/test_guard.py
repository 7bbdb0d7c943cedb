"""What holds for every route: tokens, sizes, bounds, clients that go away, readiness, metrics."""

import asyncio
import json
import re
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from rocstar.sandbox.http import malformed
from rocstar.sandbox.http.guard import Owner, Owners
from rocstar.sandbox.service.dialects import native
from rocstar.sandbox.service.dialects.code_judge import JudgeOptions
from rocstar.sandbox.testing import FakeSandbox, error, ok, timeout
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError

from ...patience import PATIENCE_S
from ...raw_http import answer_to

TOKEN = "0123456789abcdef"
EVERY_POST = (
    "/v1/run",
    "/v1/batch",
    "/v1/sessions",
    "/run",
    "/judge/long-batch",
    "/run_code",
    "/run_jupyter",
)


class Hanging(FakeSandbox):
    """Its programs run until they are cancelled. `running` are those under way, `killed` those that ended."""

    def __init__(self) -> None:
        super().__init__({})
        self.running = 0
        self.killed = 0
        self.changed = asyncio.Condition()

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        await self._count(1)
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            await self._count(-1)

    async def run_batch(self, requests: Any, *, deadline: float | None = None) -> Any:
        await self._count(len(requests))
        try:
            await asyncio.Event().wait()
            yield 0, ok()
        finally:
            await self._count(-len(requests))

    async def _count(self, change: int) -> None:
        async with self.changed:
            self.running += change
            self.killed -= min(0, change)
            self.changed.notify_all()

    async def until_running(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(lambda: self.running == number)


@pytest.mark.parametrize("path", EVERY_POST)
async def test_a_token_is_needed_where_one_is_set(serve: Any, path: str) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, token=TOKEN) as service:
        for header in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": TOKEN},
            {"Authorization": f"Basic {TOKEN}"},
        ):
            status, _ = await service.post(path, {"code": "x"}, headers=header)
            assert status == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        status, _ = await service.post(path, {"nonsense": 1}, headers=right)
        assert status in (400, 422)
    assert fake.requests == []


async def test_only_health_and_ping_need_no_token(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok("1\n")), token=TOKEN) as service:
        for path, status in (
            ("/healthz", 200),
            ("/ping", 200),
            ("/readyz", 200),
            ("/metrics", 401),
            ("/status", 401),
        ):
            async with service.http.get(path) as answer:
                assert answer.status == status, path


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_a_413(serve: Any, chunked: bool) -> None:
    async def pieces() -> Any:
        for _ in range(64):
            yield b" " * 1024

    async with serve(FakeSandbox({}, otherwise=ok()), max_body_bytes=10_000) as service:
        data = pieces() if chunked else b" " * 20_000
        async with service.http.post("/v1/run", data=data) as answer:
            fields = await answer.json()
        assert (answer.status, fields["error"]["field"]) == (413, "body")
        assert (await service.post("/v1/run", {"code": "x"}))[0] == 200


async def test_a_body_that_does_not_arrive_is_a_408(serve: Any) -> None:
    async with serve(FakeSandbox({}), body_timeout_s=0.05) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        async with asyncio.timeout(PATIENCE_S):
            assert b" 408 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("encoding", ["deflate", "gzip"])
async def test_a_compressed_body_is_refused_as_it_came(serve: Any, encoding: str) -> None:
    """62 MiB of nothing are 61 KiB of traffic: they were inflated before anybody had counted them."""
    body = zlib.compress(b'{"code": "' + b"1" * (1 << 20) + b'"}', wbits=31 if encoding == "gzip" else 15)
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        answer = await service.post("/v1/run", data=body, headers={"Content-Encoding": encoding})
        assert (answer[0], answer[1]["error"]["field"]) == (415, "Content-Encoding")
        assert (await service.post("/v1/run", {"code": "x"}))[0] == 200


@pytest.mark.parametrize(
    "crooked",
    [
        b"x: " + b"y" * 10_000,
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    ],
    ids=["long header", "two lengths", "negative chunk"],
)
async def test_what_is_no_http_is_answered_and_fills_no_log(
    serve: Any, caplog: pytest.LogCaptureFixture, crooked: bytes
) -> None:
    """A few bytes of a stranger's would be a kilobyte of traceback: it is one line, at most every second."""
    async with serve(FakeSandbox({}, otherwise=ok())) as service, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\n" + crooked + b"\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        assert (await service.get("/healthz"))[0] == 200
    assert len(caplog.records) <= 1 and not any(record.exc_info for record in caplog.records)


async def test_what_is_no_http_has_the_form_of_other_errors(
    serve: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(malformed, "LOG_EVERY_S", 0.0)
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        line, body = await answer_to(service.port)
    reason = "the request is not HTTP: Invalid character in Content-Length: b'Content-Length: x'"
    told = {"kind": "not_http", "message": reason, "field": "", "retryable": False}
    assert " 400 " in line and json.loads(body) == {"error": told}
    (record,) = caplog.records
    line = f"a request from 127.0.0.1 is not HTTP: {reason.partition(': ')[2]}"
    assert record.getMessage().startswith(line) and record.exc_info is None


async def test_bodies_that_are_not_complete_count_as_held(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok()), max_held_bytes=10_000) as service:
        begun = []
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"7d0\r\n" + b" " * 2000 + b"\r\n")
            begun.append(writer)
        async with asyncio.timeout(PATIENCE_S):
            while service.service._body_reader.held.taken < 8000:
                await service.get("/healthz")
        assert (await service.post("/v1/run", {"code": "x" * 4000}))[0] == 429
        for writer in begun:
            writer.close()


@pytest.mark.parametrize("path", ["/v1/batch", "/run_code", "/run/batch"])
async def test_a_body_of_millions_of_values_is_not_looked_through(serve: Any, path: str) -> None:
    body = b'{"requests":[' + b"[]," * 700_000 + b"[]]}"
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        status, answer = await service.post(path, data=body)
        assert status == 400 and "the body does not fit" in str(answer)
        status, answer = await service.post(path, data=body[:-2] + b",[]" * 3_400_000 + b"]}")
        assert status == 413 and "values" in str(answer)


async def test_a_large_body_is_decoded_beside_the_loop(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty thousand calls took a second, in which nobody had an answer."""
    reading, read = threading.Event(), threading.Event()

    def decode(body: bytes, **more: Any) -> Any:
        reading.set()
        assert read.wait(PATIENCE_S)
        return real(body, **more)

    real = native.decode_batch
    monkeypatch.setattr(native, "decode_batch", decode)
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        body = {"requests": [{"code": "x" * 1000}] * 50}
        large = asyncio.create_task(service.post("/v1/batch", body))
        assert await asyncio.to_thread(reading.wait, PATIENCE_S)
        assert (await service.get("/healthz"))[0] == 200 and not large.done()
        read.set()
        assert (await large)[0] == 200


async def test_more_program_text_than_fits_is_a_429(serve: Any) -> None:
    hanging = Hanging()
    async with serve(hanging, max_held_bytes=10_000) as service:
        held = asyncio.create_task(service.post("/v1/run", {"code": "x" * 6000}))
        await hanging.until_running(1)
        assert (await service.post("/v1/run", {"code": "x" * 6000}))[0] == 429
        more = asyncio.create_task(service.post("/v1/run", {"code": "x" * 2000}))
        await hanging.until_running(2)
        for task in (held, more):
            task.cancel()
        await hanging.until_running(0)
        more = asyncio.create_task(service.post("/v1/run", {"code": "x" * 6000}))
        await hanging.until_running(1)
        more.cancel()
        await hanging.until_running(0)


@pytest.mark.parametrize(
    ("path", "body", "lengths"),
    [
        ("/v1/batch", {"requests": [{"code": "x"}] * 5}, lambda a: [len(r["value"]) for r in a["results"]]),
        (
            "/get_observation",
            {"trajectory_ids": ["1"] * 5, "actions": ["<python>x</python>"] * 5},
            lambda answer: sorted(
                len(text) - len("\n<result>\n" + "\n</result>\n") for text in answer["observations"]
            ),
        ),
        (
            "/run_jupyter",
            {"cells": ["x"] * 5},
            lambda answer: [len(cell["stdout"]) for cell in answer["cells"]],
        ),
    ],
)
async def test_of_many_outputs_in_one_answer_those_beyond_what_may_be_held_are_heads(
    serve: Any, path: str, body: Any, lengths: Callable[[Any], list[int]]
) -> None:
    """In whatever dialect, and by whichever text of a result."""
    text = "x" * 50_000
    result = ok(value=text) if path == "/v1/batch" else ok(text)
    async with serve(FakeSandbox({}, otherwise=result), max_held_bytes=101_000) as service:
        for _ in range(2):  # and what was held is given back
            _, answer = await service.post(path, body)
            assert sorted(lengths(answer)) == [4096] * 2 + [50_000] * 3
            assert service.service.admission.held.taken == 0


async def test_of_many_submissions_none_is_shown_beyond_what_may_be_held(serve: Any) -> None:
    """A thousand characters of each, of 65,536 in an answer, and six bytes for what JSON escapes."""
    fake = FakeSandbox({}, otherwise=ok("\0" * 50_000))
    judge = JudgeOptions(shown_chars=10_000)
    async with serve(fake, judge=judge, max_held_bytes=100_000) as service:
        for _ in range(2):  # and what was held is given back
            body = {"submissions": [{"type": "python", "solution": "x"}] * 5}
            _, answer = await service.post("/run/long-batch", body)
            assert [len(one["stdout"]) for one in answer["results"]] == [0] * 3 + [10_000] * 2
            assert all(one["success"] for one in answer["results"])
            assert service.service.admission.held.taken == 0


@pytest.mark.parametrize(
    ("path", "body", "length"),
    [
        ("/v1/run", {"code": "x"}, lambda answer: len(answer["stdout"])),
        (
            "/run_code",
            {"code": "x", "language": "python"},
            lambda answer: len(answer["run_result"]["stdout"]),
        ),
    ],
)
async def test_what_a_client_does_not_take_counts_as_held(
    serve: Any, until: Any, path: str, body: Any, length: Callable[[Any], int]
) -> None:
    """It may have thousands of connections, and an answer be 128 MiB."""
    text = "x" * (16 << 20)  # more than the buffers between the two
    fake = FakeSandbox({}, otherwise=ok(text))
    async with serve(fake, max_held_bytes=len(text) - 1) as service:
        held = service.service.admission.held
        sent = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n".encode()
        _, writer = await asyncio.open_connection("127.0.0.1", service.port, limit=1024)
        writer.write(head + sent)
        await until(lambda: held.taken >= len(text))
        assert length((await service.post(path, body))[1]) == 4096
        writer.transport.abort()
        await until(lambda: not held.taken)
        assert length((await service.post(path, body))[1]) == len(text)


async def test_more_calls_than_fit_are_a_429_and_run_nothing(serve: Any) -> None:
    hanging = Hanging()
    async with serve(hanging, max_calls=10) as service:
        held = asyncio.create_task(service.post("/v1/batch", {"requests": [{"code": "x"}] * 8}))
        await hanging.until_running(8)
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/v1/batch", {"requests": [{"code": "x"}] * 3}),
            ("/v1/batch", {"requests": [{"code": "x"}] * 3, "stream": True}),
            ("/run/long-batch", {"submissions": [{"type": "python", "solution": "x"}] * 3}),
        ]
        for path, body in bodies:
            async with service.http.post(path, json=body) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert hanging.running == 8
        more = asyncio.create_task(service.post("/v1/batch", {"requests": [{"code": "x"}] * 2}))
        await hanging.until_running(10)
        for path, body in (
            ("/v1/run", {"code": "x"}),
            ("/run", {"type": "python", "solution": "x"}),
            ("/run_code", {"code": "x", "language": "python"}),
            ("/run_jupyter", {"cells": ["x"]}),
            ("/v1/sessions", {}),
        ):
            assert (await service.post(path, body))[0] == 429, path
        held.cancel()
        await hanging.until_running(2)
        more.cancel()
        await hanging.until_running(0)


async def test_a_stream_that_has_begun_is_refused_no_more(
    serve: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the refusals of a batch others have turns, and took its places: the head of a 429 stood among
    its lines then."""
    began, goes_on, write = asyncio.Event(), asyncio.Event(), native.write

    async def slow(*arguments: Any) -> None:
        began.set()
        await goes_on.wait()
        await write(*arguments)

    monkeypatch.setattr(native, "write", slow)
    body = {"requests": [{"code": 5}] * 2 + [{"code": "x"}] * 2, "stream": True}
    async with serve(FakeSandbox({}, otherwise=ok()), max_calls=2) as service:
        async with service.http.post("/v1/batch", json=body):
            await began.wait()
            assert (await service.post("/v1/run", {"code": "x"}))[0] == 429
        await until(lambda: not service.service.metrics.in_flight)  # nobody reads on
        async with service.http.post("/v1/batch", json=body) as answer:
            goes_on.set()
            assert sorted([json.loads(line)["index"] async for line in answer.content]) == [0, 1, 2, 3]
        assert service.service.metrics.in_flight == 0


async def test_a_stream_by_key_that_has_no_room_is_a_429(serve: Any) -> None:
    """Whatever of it could be refused by itself: those lines came first, and then a second head."""
    hanging = Hanging()
    async with serve(hanging, max_calls=1) as service:
        held = asyncio.create_task(service.post("/v1/run", {"code": "x"}))
        await hanging.until_running(1)
        body = {"requests": [{"code": 5}, {"code": "x"}], "stream": True}
        for number, status in ((1, 429), (2, 413)):
            body["requests"] = [{"code": 5}] + [{"code": "x"}] * number
            async with service.http.post("/v1/batch", json=body, headers={"Idempotency-Key": "k"}) as answer:
                assert answer.status == status
        held.cancel()
        await hanging.until_running(0)


async def test_a_batch_that_never_fits_is_refused_for_good(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok()), max_calls=4) as service:
        status, answer = await service.post("/v1/batch", {"requests": [{"code": "x"}] * 5})
        assert (status, answer["error"]["retryable"]) == (413, False)


@pytest.mark.parametrize(
    ("path", "body", "number"),
    [
        ("/v1/run", {"code": "x"}, 1),
        ("/v1/batch", {"requests": [{"code": "x"}] * 5}, 5),
        ("/v1/batch", {"requests": [{"code": "x"}] * 5, "stream": True}, 5),
        ("/run", {"type": "python", "solution": "x"}, 1),
        ("/judge/long-batch", {"submissions": [{"type": "python", "solution": "x"}] * 3}, 3),
        ("/run_code", {"code": "x", "language": "python"}, 1),
    ],
)
async def test_a_client_that_goes_away_takes_its_calls_along(
    serve: Any, until: Any, path: str, body: Any, number: int
) -> None:
    hanging = Hanging()
    async with serve(hanging) as service:
        data = json.dumps(body).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await hanging.until_running(number)
        assert service.service.metrics.in_flight == number
        writer.close()
        await hanging.until_running(0)
        assert hanging.killed == number
        await asyncio.wait_for(service.service.admission.drained(), PATIENCE_S)
        assert service.service.metrics.in_flight == 0
        await until(lambda: service.service.metrics.disconnects)


async def test_a_client_that_is_gone_is_no_mistake_of_the_server(
    serve: Any, until: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be logged with a traceback, each time that a client has enough of a stream."""
    written: list[bytes] = []
    write = web.StreamResponse.write

    async def gone(response: web.StreamResponse, data: bytes) -> None:
        if written:
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        written.append(data)
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", gone)
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        body = {"requests": [{"code": "x"}] * 2, "stream": True}
        with pytest.raises(aiohttp.ClientError):
            async with service.http.post("/v1/batch", json=body) as answer:
                await answer.read()
        await until(lambda: service.service.metrics.disconnects)
    assert written and not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_client_that_is_slow_to_read_a_stream_does_not_harm_others(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok("x" * 100_000))
    async with serve(fake) as service:
        body = json.dumps({"requests": [{"code": "x"}] * 500, "stream": True}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", service.port, limit=1024)
        writer.write(
            b"POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        assert (await service.post("/v1/run", {"code": "x"}))[0] == 200
        assert len(fake.requests) < 500  # the stream waits for its reader
        writer.close()
        await asyncio.wait_for(service.service.admission.drained(), PATIENCE_S)


async def test_a_service_that_drains_takes_nothing_new(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        service.service.draining = True
        async with service.http.post("/run", json={}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert (await service.get("/healthz"))[0] == 200
        assert (await service.get("/readyz"))[0] == 503


async def test_readiness_is_a_program_that_runs(serve: Any) -> None:
    answers: list[Any] = [ok("1\n"), error("boom\n"), SandboxError("gone", kind="closed", retryable=False)]
    for answer, status in zip(answers, (200, 503, 503), strict=True):
        fake = FakeSandbox({}, otherwise=answer)
        async with serve(fake) as service:
            found = await asyncio.gather(*(service.get("/readyz") for _ in range(5)))
        assert [entry[0] for entry in found] == [status] * 5
        assert len(fake.requests) == 1
        asked = fake.requests[0]
        assert (asked.code, asked.files, asked.owner) == ("print(1)", {}, " readiness")  # it writes nothing


async def test_metrics_count_what_happened(serve: Any) -> None:
    class Telling(FakeSandbox):
        restarts, evictions = 1, 2

        def counters(self) -> dict[str, int]:
            return {"entries": 3}

    script = {"a": ok(), "b": timeout(), "c": SandboxError("x", kind="zygote_died", retryable=True)}
    async with serve(Telling(script)) as service:
        await service.post("/v1/batch", {"requests": [{"code": code} for code in "aab"]})
        await service.post("/v1/run", {"code": "c"})
        async with service.http.get("/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            families = list(text_string_to_metric_families(await answer.text()))
    found = {
        (sample.name.removeprefix("rocstar_sandbox_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    for name, value in {
        ("in_flight",): 0,
        ("results_total", "stdlib", "ok"): 2,
        ("results_total", "stdlib", "timeout"): 1,
        ("failures_total", "zygote_died"): 1,
        ("answers_total", "503", "/v1/run"): 1,
        ("wall_seconds_bucket", "0.001"): 0,
        ("wall_seconds_bucket", "0.0025"): 3,
        ("wall_seconds_bucket", "+Inf"): 3,
        ("wall_seconds_count",): 3,
        ("queued",): 0,
        ("restarts_total",): 1,
        ("evictions_total",): 2,
        ("fabric_entries_total",): 3,
    }.items():
        assert found[name] == value, name
    assert len({family.name for family in families}) == len(families)
    assert all(value >= 0 for value in found.values())
    assert not [name for name, *_ in found if name.endswith("_created")]


async def test_the_document_lists_the_metrics(serve: Any) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "service.md").read_text(encoding="utf-8")
    table = text.partition("## Watching it")[2].partition("`--access-log`")[0]
    named = {
        name.removeprefix("rocstar_sandbox_")
        for name in re.findall(r"`([a-z_]+)(?:\{[a-z,]+\})?`", table)
        if name not in ("rocstar_sandbox_",)
    }
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        await service.post("/v1/run", {"code": "x"})
        async with service.http.get("/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
    shown = {
        family.name.removeprefix("rocstar_sandbox_") + ("_total" if family.type == "counter" else "")
        for family in families
    }
    of_a_pool = {"pool_sessions", "evictions_total", "restarts_total"}
    assert shown == named - of_a_pool


async def test_two_services_count_apart(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok())) as one, serve(FakeSandbox({}, otherwise=ok())) as other:
        await one.post("/v1/run", {"code": "x"})
        assert await one.metric("wall_seconds_count") == 1
        assert await other.metric("wall_seconds_count") == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "shown"),
    [
        ("/v1/run", {"code": "x"}, 503, "'retryable': True"),
        ("/v1/batch", {"requests": [{"code": "x"}]}, 200, "'retryable': True"),
        ("/judge", {"type": "python", "solution": "x"}, 200, "'reason': 'queue_timeout'"),
        (
            "/run/batch",
            {"submissions": [{"type": "python", "solution": "x"}]},
            200,
            "'reason': 'queue_timeout'",
        ),
        ("/run_code", {"code": "x", "language": "python"}, 504, "'status': 'SandboxError'"),
        ("/run_jupyter", {"cells": ["x"]}, 504, "'status': 'SandboxError'"),
        (
            "/get_observation",
            {"trajectory_ids": ["1"], "actions": ["<python>x</python>"]},
            503,
            "'retryable': True",
        ),
    ],
)
async def test_what_a_service_that_ends_does_not_run_can_be_asked_of_the_next(
    serve: Any, path: str, body: Any, status: int, shown: str
) -> None:
    """It was a wrong answer to those who judge."""
    closed = SandboxError("the sandbox pool is closed", kind="closed", retryable=False)
    async with serve(FakeSandbox({}, otherwise=closed)) as service:
        found, answer = await service.post(path, body)
    assert found == status and shown in str(answer)


async def test_every_error_below_v1_has_one_form_and_a_slash_changes_nothing(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        assert (await service.post("/v1/run/", {"code": "x"}))[0] == 200
        for status, told in (
            await service.post("/v1/run/", {}),
            await service.get("/v1/run"),
            await service.get("/v1/nothing/"),
            await service.get("/v1"),
        ):
            assert status in (400, 404, 405, 422) and told["error"]["message"], (status, told)
        assert "detail" in (await service.get("/nothing"))[1]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 999999999\r\nExpect: 100-continue", b" 413 "),
        (b"Content-Length: 2\r\nExpect: 100-continue", b" 100 "),
        (b"Content-Length: 2\r\nExpect: a-miracle", b" 417 "),
        (b"Content-Length: 2\r\nContent-Encoding: gzip\r\nExpect: 100-continue", b" 415 "),
    ],
)
async def test_a_body_is_refused_by_its_head(serve: Any, head: bytes, status: bytes) -> None:
    async with serve(FakeSandbox({}, otherwise=ok())) as service, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
        assert status in await reader.readline()
        writer.close()


async def test_a_probe_without_a_token_hears_yes_or_no_and_no_reason(serve: Any) -> None:
    broken = SandboxError("a secret reason", kind="no_isolation", retryable=False)
    owners = Owners((Owner(name="", token="0123456789abcdef"),))
    async with serve(FakeSandbox({}, otherwise=broken), owners=owners) as service:
        status, told = await service.get("/readyz")
        assert status == 503 and not told.get("reason")
        status, told = await service.get("/readyz", headers={"Authorization": "Bearer 0123456789abcdef"})
        assert status == 503 and "a secret reason" in told["reason"]
