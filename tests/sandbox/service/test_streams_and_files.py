"""Files sent and fetched over HTTP, streamed cells, and invalid requests for both."""

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.http.responses import NDJSON
from rocstar.sandbox.service.results import EVENTS, MAX_JSON_FILES_BYTES, OutputBuffer, OutputEvent, stream_cell
from rocstar.sandbox.types import Display, ExecRequest, ExecResult, SandboxError
from tests.fakes.sandbox import FakeSandbox, error, ok

from .conftest import request_bytes

TABLE = {"in/table.csv": base64.b64encode(b"a,b\n").decode()}


def keeps_files() -> FakeSandbox:
    """Its one directory is shared by all that it runs."""
    kept: dict[str, bytes] = {}

    def answer(request: ExecRequest) -> ExecResult:
        kept.update(request.files)
        shown = (Display("image/png", b"png"),) if request.displays else ()
        files = {name: kept[name] for name in request.fetch if name in kept}
        return replace(ok("line\n", stderr="warned\n"), files=files, displays=shown)

    return FakeSandbox(answer)


async def opened(service: Any) -> str:
    return f"/v1/sessions/{(await service.post('/v1/sessions', {}))[1]['id']}"


async def test_a_table_goes_up_and_a_picture_comes_down(serve: Any) -> None:
    body = {"code": "x", "files": TABLE, "fetch_files": ["in/table.csv", "nowhere"], "displays": True}
    async with serve(keeps_files()) as service:
        for path in ("/v1/run", f"{await opened(service)}/run"):
            status, answer = await service.post(path, body)
            assert (status, answer["files"]) == (200, TABLE)
            assert answer["displays"] == [{"mime": "image/png", "data": base64.b64encode(b"png").decode()}]


async def test_a_file_of_any_bytes_goes_as_it_is(serve: Any) -> None:
    content = bytes(range(256)) * 4096
    async with serve(keeps_files()) as service:
        path = f"{await opened(service)}/files/a/é.bin"
        async with service.http.put(path, data=content) as answer:
            assert answer.status == 204
        async with service.http.get(path) as answer:
            assert (answer.status, answer.content_type) == (200, "application/octet-stream")
            assert await answer.read() == content


async def test_a_file_that_cannot_be_written_says_why(serve: Any) -> None:
    async with serve(FakeSandbox({}, otherwise=error("the files of this call cannot be written\n"))) as service:
        async with service.http.put(f"{await opened(service)}/files/a", data=b"x") as answer:
            assert (answer.status, (await answer.json())["error"]["field"]) == (400, "name")


@pytest.mark.parametrize("kind", [EVENTS, NDJSON])
async def test_output_comes_before_the_result(serve: Any, kind: str) -> None:
    async with serve(keeps_files()) as service:
        path = f"{await opened(service)}/run"
        async with service.http.post(path, json={"code": "x"}, headers={"Accept": kind}) as answer:
            assert (answer.status, answer.content_type) == (200, kind)
            text = await answer.text()
    if kind == EVENTS:
        parts = [part.split("\n") for part in text.strip().split("\n\n")]
        assert [name for name, _ in parts] == ["event: output", "event: output", "event: result"]
        lines = [json.loads(data.removeprefix("data: ")) for _, data in parts]
    else:
        lines = [json.loads(line) for line in text.splitlines()]
    assert lines[:2] == [{"stream": "stdout", "text": "line\n"}, {"stream": "stderr", "text": "warned\n"}]
    assert lines[2]["result"]["status"] == "ok"


async def test_a_failure_before_any_output_has_its_own_status(serve: Any) -> None:
    late = SandboxError("late", kind="deadline", retryable=True)
    async with serve(FakeSandbox({}, otherwise=late)) as service:
        path = f"{await opened(service)}/run"
        status, answer = await service.post(path, {"code": "x"}, headers={"Accept": EVENTS})
    assert (status, answer["error"]["kind"]) == (504, "deadline")


async def test_who_stops_following_ends_the_cell() -> None:
    ended = asyncio.Event()

    async def start(tell: Any) -> ExecResult:
        tell("stdout", "x")
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            ended.set()

    shares = OwnerBudget(1, {})
    with OutputBuffer(shares, "") as held:
        events = stream_cell(start, held)
        assert await anext(events) == OutputEvent("stdout", "x")
        await events.aclose()
    assert ended.is_set() and not shares.taken


ASKED = {
    "a file": ("GET", "files/f", {}, None),
    "a streamed cell": ("POST", "run", {"Accept": NDJSON}, {"code": "x"}),
    "files of a cell": ("POST", "run", {}, {"code": "x", "fetch_files": ["f"]}),
}


@pytest.mark.parametrize("what", ASKED)
async def test_what_a_client_does_not_take_counts_whatever_it_is(serve: Any, until: Any, what: str) -> None:
    content = b"x" * (MAX_JSON_FILES_BYTES - 1)

    def answer(request: ExecRequest) -> ExecResult:
        text = "" if request.fetch else content.decode()
        return replace(ok(text), files=dict.fromkeys(request.fetch, content))

    method, path, headers, body = ASKED[what]
    async with serve(FakeSandbox(answer), max_held_bytes=len(content) - 1) as service:
        held, path = service.service.admission.held, f"{await opened(service)}/{path}"
        lines = (f"{name}: {value}" for name, value in headers.items())
        _, writer = await service.send(request_bytes(path, body, *lines, method=method), limit=1024)
        await until(lambda: held.taken >= len(content))
        async with service.http.request(method, path, headers=headers, json=body) as answered:
            short = await answered.read()
        assert len(short) < 20_000
        if what == "a streamed cell":
            assert json.loads(short)["result"]["stdout_truncated"]  # and none while it ran
        else:
            assert (answered.status, json.loads(short)["error"]["kind"]) in ((429, "full"), (500, "no_room"))
        writer.transport.abort()
        await until(lambda: not held.taken)
        async with service.http.request(method, path, headers=headers, json=body) as answered:
            assert len(await answered.read()) >= len(content)
        await until(lambda: not held.taken)


async def test_a_notebook_shows_no_more_pictures_than_may_be_held(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=replace(ok(), displays=(Display("image/png", bytes(50_000)),)))
    async with serve(fake, max_held_bytes=100_000) as service:
        for _ in range(2):  # and what was held is given back
            _, answer = await service.post("/run_jupyter", {"cells": ["x"] * 5})
            assert [len(cell["display"]) for cell in answer["cells"]] == [1, 1, 1, 0, 0]
            assert service.service.admission.held.taken == 0


# --- clients that mean no good -----------------------------------------------------------------------------

LARGE = base64.b64encode(bytes(MAX_JSON_FILES_BYTES)).decode()
BODIES: dict[str, tuple[dict[str, Any], int, str]] = {
    "a name above the directory": ({"files": {"../x": "eA=="}}, 400, "files"),
    "a name from the root": ({"files": {"/etc/passwd": "eA=="}}, 400, "files"),
    "a name with a line's end": ({"fetch_files": ["a\nb"]}, 400, "fetch_files"),
    "a name that climbs after all": ({"fetch_files": ["a/../../b"]}, 400, "fetch_files"),
    "a file that is a folder too": ({"files": {"a": "", "a/b": ""}}, 400, "files"),
    "no base64": ({"files": {"a": "!"}}, 400, "files.a"),
    "half of base64": ({"files": {"a": "eA"}}, 400, "files.a"),
    "a number for a file": ({"files": {"a": 1}}, 400, "files.a"),
    "a list for files": ({"files": ["a"]}, 400, "files"),
    "more names than are taken": ({"fetch_files": [str(n) for n in range(65)]}, 413, "fetch_files"),
    "more files than are taken": ({"files": {str(n): "" for n in range(65)}}, 413, "files"),
    "more bytes than one text carries": ({"files": {"a": LARGE, "b": "eA=="}}, 413, "files"),
    "a word for a truth": ({"displays": "yes"}, 400, "displays"),
}


@pytest.mark.parametrize("where", ["/v1/run", "session"])
@pytest.mark.parametrize("how", BODIES)
async def test_a_body_that_asks_for_what_cannot_be_runs_nothing(serve: Any, how: str, where: str) -> None:
    more, expected, field = BODIES[how]
    sandbox = keeps_files()
    async with serve(sandbox) as service:
        path = where if where != "session" else f"{await opened(service)}/run"
        status, answer = await service.post(path, {"code": "x", **more})
    assert (status, sandbox.requests) == (expected, []), answer
    assert answer["error"]["field"] == field


async def test_more_than_one_answer_holds_is_a_failure_that_names_the_way(serve: Any) -> None:
    large = replace(ok(), files={"a": bytes(MAX_JSON_FILES_BYTES + 1)})
    async with serve(FakeSandbox({}, otherwise=large)) as service:
        path = await opened(service)
        for way in ("/v1/run", f"{path}/run"):
            status, answer = await service.post(way, {"code": "x", "fetch_files": ["a"]})
            assert (status, answer["error"]["kind"]) == (500, "too_large")
            assert "GET /v1/sessions/ID/files/NAME" in answer["error"]["message"]
        async with service.http.get(f"{path}/files/a") as answer:
            assert len(await answer.read()) == MAX_JSON_FILES_BYTES + 1


async def test_a_streamed_cell_takes_no_key(serve: Any) -> None:
    sandbox = keeps_files()
    async with serve(sandbox) as service:
        path, headers = f"{await opened(service)}/run", {"Accept": EVENTS, "Idempotency-Key": "k"}
        status, answer = await service.post(path, {"code": "x"}, headers=headers)
    assert (status, answer["error"]["field"], sandbox.requests) == (400, "Accept", [])
