"""The rules of every route: tokens, sizes, budgets, disconnected clients, readiness, metrics."""

import asyncio
import json
import re
import threading
import zlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from rocstar.sandbox.http import malformed, responses
from rocstar.sandbox.service.dialects import native
from rocstar.sandbox.service.dialects.code_judge import JudgeOptions
from rocstar.sandbox.types import SandboxError
from tests.fakes.sandbox import FakeSandbox, error, ok, timeout

from ...malformed_http import NOT_HTTP, answer_to
from ...patience import PATIENCE_S
from .conftest import HeldSandbox, request_bytes

TOKEN = "0123456789abcdef"
PROGRAM = {"code": "x"}
SUBMISSION = {"type": "python", "solution": "x"}
CODE_RUN = {"code": "x", "language": "python"}


@pytest.mark.parametrize("path", ["/v1/run", "/judge/long-batch", "/run_code"])
async def test_a_token_is_needed_where_one_is_set(serve: Any, path: str) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, token=TOKEN) as service:
        for sent in ("", "Bearer wrong", TOKEN, f"Basic {TOKEN}"):
            assert (await service.post(path, PROGRAM, headers={"Authorization": sent}))[0] == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await service.post(path, {"nonsense": 1}, headers=right))[0] in (400, 422)
    assert fake.requests == []


EXPECT = "Expect: 100-continue"
PLAIN = b'{"code": "' + b"1" * (1 << 20) + b'"}'
BODIES: dict[str, tuple[bytes, int, bytes]] = {
    "too long by its head": (request_bytes("/v1/run", " " * 20_000), 413, b"body"),
    "too long in chunks": (
        request_bytes("/v1/run", None, "Transfer-Encoding: chunked")
        + (b"400\r\n" + b" " * 1024 + b"\r\n") * 64
        + b"0\r\n\r\n",
        413,
        b"body",
    ),
    "too long before it comes": (request_bytes("/v1/run", None, "Content-Length: 999999999", EXPECT), 413, b"body"),
    "late": (request_bytes("/v1/run", None, "Content-Length: 10") + b"{", 408, b"body"),
    "wanted": (request_bytes("/v1/run", None, "Content-Length: 2", EXPECT), 100, b""),
    "expected in another way": (request_bytes("/v1/run", None, "Content-Length: 2", "Expect: a-miracle"), 417, b""),
    "encoded before it comes": (
        request_bytes("/v1/run", None, "Content-Length: 2", "Content-Encoding: gzip", EXPECT),
        415,
        b"Content-Encoding",
    ),
    **{
        name: (
            request_bytes("/v1/run", None, f"Content-Length: {len(packed)}", f"Content-Encoding: {name}") + packed,
            415,
            b"Content-Encoding",
        )
        for name, bits in (("gzip", 31), ("deflate", 15))
        if (packed := zlib.compress(PLAIN, wbits=bits))
    },
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_is_refused_with_the_reason(serve: Any, name: str) -> None:
    """A compressed one before it is inflated: 62 MiB of zeros are 61 KiB of traffic."""
    sent, status, field = BODIES[name]
    async with (
        serve(FakeSandbox({}, otherwise=ok()), max_body_bytes=10_000, body_timeout_s=0.2) as service,
        asyncio.timeout(PATIENCE_S),
    ):
        reader, writer = await service.send(sent)
        assert f" {status} ".encode() in await reader.readline()
        if field:
            assert b'"field":"%b"' % field in await reader.readuntil(b"}}")
        writer.close()
        assert (await service.post("/v1/run", PROGRAM))[0] == 200


async def test_what_is_no_http_has_the_form_of_other_errors(
    serve: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one line of the log, at most one every `LOG_EVERY_S`, and never a traceback."""
    monkeypatch.setattr(malformed, "LOG_EVERY_S", 0.0)
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        for crooked in ("x: " + "y" * 10_000, "Content-Length: 5\r\nTransfer-Encoding: chunked"):
            line, _ = await answer_to(service.port, request_bytes("/v1/run", None, crooked))
            assert " 400 " in line
        caplog.clear()
        line, body = await answer_to(service.port)
        (record,) = caplog.records
        monkeypatch.setattr(malformed, "LOG_EVERY_S", 1e9)
        assert (await answer_to(service.port, NOT_HTTP))[1] == body and len(caplog.records) == 1
        assert (await service.get("/healthz"))[0] == 200
    reason = "the request is not HTTP: Invalid character in Content-Length: b'Content-Length: x'"
    expected = {"kind": "not_http", "message": reason, "field": "", "retryable": False}
    assert " 400 " in line and json.loads(body) == {"error": expected}
    line = f"a request from 127.0.0.1 is not HTTP: {reason.partition(': ')[2]}"
    assert record.getMessage().startswith(line) and record.exc_info is None


async def test_bodies_that_are_not_complete_count_as_held(serve: Any, until: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok()), max_held_bytes=10_000) as service:
        begun = request_bytes("/v1/run", None, "Transfer-Encoding: chunked") + b"7d0\r\n" + b" " * 2000
        writers = [(await service.send(begun + b"\r\n"))[1] for _ in range(4)]
        await until(lambda: service.service._body_reader.held.taken >= 8000)
        assert (await service.post("/v1/run", {"code": "x" * 4000}))[0] == 429
        for writer in writers:
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
    """Decoding sixty thousand calls takes a second."""
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
    held = HeldSandbox()
    async with serve(held, max_held_bytes=10_000) as service:
        calls = []
        for sizes in ((6000, 2000), (6000,)):  # the second time what was held is given back
            for number, size in enumerate(sizes, 1):
                calls.append(asyncio.create_task(service.post("/v1/run", {"code": "x" * size})))
                await held.until_running(number)
                assert (await service.post("/v1/run", {"code": "x" * 6000}))[0] == 429
            for call in calls:
                call.cancel()
            await held.until_running(0)


def lengths(path: str, answer: Any) -> list[int]:
    """The length of each output of an answer."""
    if path == "/v1/batch":
        return [len(result["value"]) for result in answer["results"]]
    return [len(cell["stdout"]) for cell in answer["cells"]]


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/batch", {"requests": [PROGRAM] * 5}), ("/run_jupyter", {"cells": ["x"] * 5})]
)
async def test_of_many_outputs_in_one_answer_those_beyond_what_may_be_held_are_heads(
    serve: Any, path: str, body: Any
) -> None:
    """In each dialect, and by each text of a result."""
    text = "x" * 50_000
    result = ok(value=text) if path == "/v1/batch" else ok(text)
    async with serve(FakeSandbox({}, otherwise=result), max_held_bytes=101_000) as service:
        for _ in range(2):  # and what was held is given back
            _, answer = await service.post(path, body)
            assert sorted(lengths(path, answer)) == [4096] * 2 + [50_000] * 3
            assert service.service.admission.held.taken == 0


async def test_of_many_submissions_none_is_shown_beyond_what_may_be_held(serve: Any) -> None:
    """A thousand characters of each, of 65,536 in an answer, and six bytes for what JSON escapes."""
    fake = FakeSandbox({}, otherwise=ok("\0" * 50_000))
    judge = JudgeOptions(shown_chars=10_000)
    async with serve(fake, judge=judge, max_held_bytes=100_000) as service:
        for _ in range(2):  # and what was held is given back
            _, answer = await service.post("/run/long-batch", {"submissions": [SUBMISSION] * 5})
            assert [len(one["stdout"]) for one in answer["results"]] == [0] * 3 + [10_000] * 2
            assert all(one["success"] for one in answer["results"])
            assert service.service.admission.held.taken == 0


@pytest.mark.parametrize(("path", "body"), [("/v1/run", PROGRAM), ("/run_code", CODE_RUN)])
async def test_what_a_client_does_not_take_counts_as_held(serve: Any, until: Any, path: str, body: Any) -> None:
    """A client may have thousands of connections, and an answer be 128 MiB."""
    text = "x" * (16 << 20)  # more than the buffers between the two

    async def length() -> int:
        _, answer = await service.post(path, body)
        return len(answer.get("run_result", answer)["stdout"])

    async with serve(FakeSandbox({}, otherwise=ok(text)), max_held_bytes=len(text) - 1) as service:
        budget = service.service.admission.held
        _, writer = await service.send(request_bytes(path, body), limit=1024)
        await until(lambda: budget.taken >= len(text))
        assert await length() == 4096
        writer.transport.abort()
        await until(lambda: not budget.taken)
        assert await length() == len(text)


async def test_more_calls_than_fit_are_a_429_and_run_nothing(serve: Any) -> None:
    held = HeldSandbox()
    async with serve(held, max_calls=10) as service:
        first = asyncio.create_task(service.post("/v1/batch", {"requests": [PROGRAM] * 8}))
        await held.until_running(8)
        for path, body in (
            ("/v1/batch", {"requests": [PROGRAM] * 3}),
            ("/v1/batch", {"requests": [PROGRAM] * 3, "stream": True}),
            ("/run/long-batch", {"submissions": [SUBMISSION] * 3}),
        ):
            async with service.http.post(path, json=body) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        status, refused = await service.post("/v1/batch", {"requests": [PROGRAM] * 11})
        assert (status, refused["error"]["retryable"]) == (413, False)  # it never fits
        assert held.running == 8
        more = asyncio.create_task(service.post("/v1/batch", {"requests": [PROGRAM] * 2}))
        await held.until_running(10)
        for path, body in (
            ("/v1/run", PROGRAM),
            ("/run", SUBMISSION),
            ("/run_code", CODE_RUN),
            ("/run_jupyter", {"cells": ["x"]}),
            ("/v1/sessions", {}),
        ):
            assert (await service.post(path, body))[0] == 429, path
        first.cancel()
        await held.until_running(2)
        more.cancel()
        await held.until_running(0)


async def test_a_stream_that_has_begun_is_refused_no_more(
    serve: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the refusals of a batch others have turns, and may take its places."""
    began, goes_on, write = asyncio.Event(), asyncio.Event(), responses.write

    async def slow(*arguments: Any) -> None:
        began.set()
        await goes_on.wait()
        await write(*arguments)

    monkeypatch.setattr(responses, "write", slow)
    body = {"requests": [{"code": 5}] * 2 + [PROGRAM] * 2, "stream": True}
    async with serve(FakeSandbox({}, otherwise=ok()), max_calls=2) as service:
        async with service.http.post("/v1/batch", json=body):
            await began.wait()
            assert (await service.post("/v1/run", PROGRAM))[0] == 429
        await until(lambda: not service.service.metrics.in_flight)  # nobody reads on
        async with service.http.post("/v1/batch", json=body) as answer:
            goes_on.set()
            assert sorted([json.loads(line)["index"] async for line in answer.content]) == [0, 1, 2, 3]
        assert service.service.metrics.in_flight == 0


async def test_a_stream_by_key_that_has_no_room_is_a_429(serve: Any) -> None:
    """Before the lines of its invalid calls."""
    held = HeldSandbox()
    async with serve(held, max_calls=1) as service:
        first = asyncio.create_task(service.post("/v1/run", PROGRAM))
        await held.until_running(1)
        for number, status in ((1, 429), (2, 413)):
            body = {"requests": [{"code": 5}] + [PROGRAM] * number, "stream": True}
            async with service.http.post("/v1/batch", json=body, headers={"Idempotency-Key": "k"}) as answer:
                assert answer.status == status
        first.cancel()
        await held.until_running(0)


@pytest.mark.parametrize(
    ("path", "body", "number"),
    [
        ("/v1/run", PROGRAM, 1),
        ("/v1/batch", {"requests": [PROGRAM] * 5}, 5),
        ("/v1/batch", {"requests": [PROGRAM] * 5, "stream": True}, 5),
        ("/run", SUBMISSION, 1),
        ("/judge/long-batch", {"submissions": [SUBMISSION] * 3}, 3),
        ("/run_code", CODE_RUN, 1),
    ],
)
async def test_a_client_that_goes_away_takes_its_calls_along(
    serve: Any, until: Any, path: str, body: Any, number: int
) -> None:
    held = HeldSandbox()
    async with serve(held) as service:
        _, writer = await service.send(request_bytes(path, body))
        await held.until_running(number)
        assert service.service.metrics.in_flight == number
        writer.close()
        await held.until_running(0)
        assert held.killed == number
        await asyncio.wait_for(service.service.admission.drained(), PATIENCE_S)
        assert service.service.metrics.in_flight == 0
        await until(lambda: service.service.metrics.disconnects)


async def test_a_client_that_is_gone_is_no_mistake_of_the_server(
    serve: Any, until: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log gets no traceback when a client leaves a stream."""
    written: list[bytes] = []
    write = web.StreamResponse.write

    async def gone(response: web.StreamResponse, data: bytes) -> None:
        if written:
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        written.append(data)
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", gone)
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        body = {"requests": [PROGRAM] * 2, "stream": True}
        with pytest.raises(aiohttp.ClientError):
            async with service.http.post("/v1/batch", json=body) as answer:
                await answer.read()
        await until(lambda: service.service.metrics.disconnects)
    assert written and not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_client_that_is_slow_to_read_a_stream_does_not_harm_others(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok("x" * 100_000))
    async with serve(fake) as service:
        body = {"requests": [PROGRAM] * 500, "stream": True}
        _, writer = await service.send(request_bytes("/v1/batch", body), limit=1024)
        assert (await service.post("/v1/run", PROGRAM))[0] == 200
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


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (ok("1\n"), 200, ""),
        (error("boom\n"), 503, "print(1) gave error"),
        (SandboxError("a secret", kind="no_isolation", retryable=False), 503, "no_isolation: a secret"),
    ],
)
async def test_readiness_is_a_program_that_runs(serve: Any, answer: Any, status: int, reason: str) -> None:
    """A probe without a token gets no reason."""
    fake = FakeSandbox({}, otherwise=answer)
    async with serve(fake, token=TOKEN) as service:
        found = await asyncio.gather(*(service.get("/readyz") for _ in range(5)))
        asked = await service.get("/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
    assert [one[0] for one in (*found, asked)] == [status] * 6
    assert not any(one[1].get("reason") for one in found) and asked[1].get("reason", "") == reason
    (request,) = fake.requests
    assert (request.code, request.files, request.owner) == ("print(1)", {}, " readiness")  # it writes nothing


async def test_metrics_count_what_happened(serve: Any) -> None:
    class Telling(FakeSandbox):
        restarts, evictions = 1, 2

        def counters(self) -> dict[str, int]:
            return {"entries": 3}

    script = {"a": ok(), "b": timeout(), "c": SandboxError("x", kind="zygote_died", retryable=True)}
    async with serve(Telling(script)) as service, serve(FakeSandbox({})) as other:
        await service.post("/v1/batch", {"requests": [{"code": code} for code in "aab"]})
        await service.post("/v1/run", {"code": "c"})
        async with service.http.get("/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            families = list(text_string_to_metric_families(await answer.text()))
        assert await other.metric("wall_seconds_count") == 0  # two services count apart
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
        await service.post("/v1/run", PROGRAM)
        async with service.http.get("/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
    shown = {
        family.name.removeprefix("rocstar_sandbox_") + ("_total" if family.type == "counter" else "")
        for family in families
    }
    assert shown == named - {"pool_sessions", "evictions_total", "restarts_total"}  # those of a pool


RETRY = "'retryable': True"
QUEUED = "'reason': 'queue_timeout'"


@pytest.mark.parametrize(
    ("path", "body", "status", "shown"),
    [
        ("/v1/run", PROGRAM, 503, RETRY),
        ("/v1/batch", {"requests": [PROGRAM]}, 200, RETRY),
        ("/judge", SUBMISSION, 200, QUEUED),
        ("/run/batch", {"submissions": [SUBMISSION]}, 200, QUEUED),
        ("/run_code", CODE_RUN, 504, "'status': 'SandboxError'"),
        ("/run_jupyter", {"cells": ["x"]}, 504, "'status': 'SandboxError'"),
    ],
)
async def test_what_a_service_that_ends_does_not_run_can_be_asked_of_the_next(
    serve: Any, path: str, body: Any, status: int, shown: str
) -> None:
    """To a judge it would otherwise be a wrong answer."""
    closed = SandboxError("the sandbox pool is closed", kind="closed", retryable=False)
    async with serve(FakeSandbox({}, otherwise=closed)) as service:
        found, answer = await service.post(path, body)
    assert found == status and shown in str(answer)


async def test_every_error_below_v1_has_one_form_and_a_slash_changes_nothing(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        assert (await service.post("/v1/run/", PROGRAM))[0] == 200
        for status, answer in (
            await service.post("/v1/run/", {}),
            await service.get("/v1/run"),
            await service.get("/v1/nothing/"),
            await service.get("/v1"),
        ):
            assert status in (400, 404, 405, 422) and answer["error"]["message"], (status, answer)
        assert "detail" in (await service.get("/nothing"))[1]
