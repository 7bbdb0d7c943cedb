"""Responses: one write with the bytes of aiohttp, or chunks that are encoded outside the event loop."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.http import responses
from rocstar.sandbox.http.bodies import LoopYielder
from rocstar.sandbox.http.responses import LARGE_BYTES, encode_in_chunks, fill_list, to_json
from rocstar.sandbox.service.dialects.native import Outcomes
from rocstar.sandbox.service.dialects.sandbox_fusion import CellAnswer, CellFault, Command, NotebookAnswer
from rocstar.sandbox.service.results import Failure, FailureFields
from rocstar.sandbox.types import Display, ExecResult, Status
from tests.fakes.sandbox import FakeSandbox, ok

from .conftest import request_bytes

PIECE = 20
TEXTS = st.text(st.sampled_from(["a", '"', "\\", "\n", "\x01", "\u00e9", "\u6f22", "\U0001f600"]), max_size=70)
RESULTS = st.builds(
    ExecResult,
    status=st.just(Status.OK),
    exit_code=st.just(0),
    signal=st.none(),
    stdout=TEXTS,
    stderr=TEXTS,
    stdout_truncated=st.booleans(),
    stderr_truncated=st.booleans(),
    value=st.none() | TEXTS,
    wall_s=st.floats(0, 10),
    cpu_s=st.floats(0, 10),
    peak_memory_bytes=st.integers(0, 1 << 40),
    isolation=TEXTS,
    files=st.dictionaries(TEXTS, st.binary(max_size=20), max_size=2),
    displays=st.lists(st.builds(Display, st.just("image/png"), st.binary(max_size=9)), max_size=2).map(tuple),
)
FAILURES = st.builds(lambda message: Failure(FailureFields(kind="full", message=message, retryable=True)), TEXTS)
CELLS = st.builds(
    lambda text: CellAnswer(
        stdout=text, stderr="", display=[{"text/plain": text}], error=[CellFault("a", text, [text, ""])]
    ),
    TEXTS,
)
NOTEBOOKS = st.builds(
    lambda cells, text: NotebookAnswer(
        status="Success",
        driver=Command(status="Finished", execution_time=1.5, return_code=None, stdout=text, stderr=""),
        cells=cells,
        files={text: text},
    ),
    st.lists(CELLS, max_size=3),
    TEXTS,
)
ANSWERS = st.one_of(RESULTS, FAILURES, NOTEBOOKS, RESULTS.map(lambda one: {"result": one}))


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "CHUNK_CHARS", PIECE)


@settings(max_examples=150, deadline=None)
@given(answer=ANSWERS)
def test_it_is_the_same_to_the_byte(answer: Any) -> None:
    assert encode_in_chunks(answer) == to_json(answer)


@given(text=st.text(st.sampled_from(["\ud800", "\udc00", "a", "\u6f22"]), max_size=70))
def test_half_a_pair_is_written_too(text: str) -> None:
    assert json.loads(encode_in_chunks({"sub_id": text})) == json.loads(to_json({"sub_id": text}))


def test_no_call_of_the_encoder_takes_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []

    def watched(value: Any) -> bytes:
        assert isinstance(value, str | int | float | None), "a text within is not seen"
        pieces.append(str(value))
        return to_json(value)

    monkeypatch.setattr(responses, "to_json", watched)
    long = "a\u6f22" * 500
    cell = CellAnswer(stdout=long, stderr="", display=[{"text/plain": long}], error=[])
    encode_in_chunks({"result": NotebookAnswer(status="Success", driver=None, cells=[cell], files={"a": long})})
    assert sum(map(len, pieces)) > 3000 and max(map(len, pieces)) <= PIECE


async def test_a_long_answer_is_written_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(responses, "encode_in_chunks", lambda value: asked.append(value) or b"pieces")
    assert await responses.encode_json({"a": 1}, responses.LONG_CHARS - 1) == b'{"a":1}' and not asked
    assert await responses.encode_json({"a": 1}, responses.LONG_CHARS) == b"pieces" and asked == [{"a": 1}]


ASKED = {
    "/v1/run": {"code": "a"},
    "/v1/batch": {"requests": [{"code": "a"}, {"code": 1}]},
    "/run/batch": {"sub_id": "all", "submissions": [{"type": "python", "solution": "a", "sub_id": "1"}]},
    "/run_code": {"code": "a", "language": "python"},
}


@pytest.mark.parametrize("path", sorted(ASKED))
async def test_an_answer_that_is_sent_in_pieces_is_the_same(
    serve: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """aiohttp would copy a long one whole."""
    writes = 0

    async def watched(response: Any, content: bytes, timeout_s: float) -> None:
        nonlocal writes
        writes += 1
        await write(response, content, timeout_s)

    write = responses.write
    monkeypatch.setattr(responses, "write", watched)
    async with serve(FakeSandbox({}, otherwise=ok(stdout="out\n" * 9))) as service:
        whole = await service.post(path, ASKED[path])
        assert not writes
        monkeypatch.setattr(responses, "SINGLE_WRITE_BYTES", 1)
        monkeypatch.setattr(responses, "CHUNK_BYTES", PIECE)
        status, answer = await service.post(path, ASKED[path])
    for known in (whole[1], answer):
        known.pop("processing_time_ms", None)
    assert whole == (status, answer) and status == 200 and writes == 1


async def ask(service: Any, version: str, *more: str) -> tuple[bytes, dict[str, bytes], bytes, bool]:
    """Return the status line, headers, body, and whether the connection goes on."""
    sent = request_bytes("/v1/run", {"code": "1"}, *more).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    reader, writer = await service.send(sent)
    try:
        status, *rest = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
        pairs = (line.split(b": ", 1) for line in rest)
        headers = {name.decode().lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == b"close":
            return status, headers, body, await reader.read(1) != b""
        writer.write(request_bytes("/healthz", method="GET"))
        return status, headers, body, b"200 OK" in await reader.readline()
    finally:
        writer.close()


@pytest.mark.parametrize(("version", "more"), [("1.1", "Connection: close"), ("1.0", "Connection: keep-alive")])
async def test_it_is_aiohttps_own_answer(serve: Any, version: str, more: str) -> None:
    """All but the date and the header of the connection."""
    async with serve(FakeSandbox({"1": ok("\u00e9" * 20_000 + "\n")})) as service:
        status, headers, body, goes_on = await ask(service, "1.1")
        other_status, other_headers, other_body, other_goes_on = await ask(service, version, more)
    assert goes_on and other_goes_on is ("close" not in more)
    assert (status.split(b" ", 1)[1], body) == (other_status.split(b" ", 1)[1], other_body)
    assert len(headers["date"]) == len(other_headers["date"])
    assert f"Connection: {other_headers.pop('connection').decode()}" == more
    del headers["date"], other_headers["date"]
    assert headers == other_headers


async def test_a_body_that_waits_to_be_asked_for_is(serve: Any) -> None:
    head, end, body = request_bytes("/v1/run", {"code": "1"}, "Expect: 100-continue").partition(b"\r\n\r\n")
    async with serve(FakeSandbox({"1": ok("one\n")})) as service:
        reader, writer = await service.send(head + end)
        assert await reader.readuntil(end) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert b"200 OK" in await reader.readline()
        writer.close()
        reader, writer = await service.send(head.removesuffix(b"100-continue") + end + body)
        assert b"200 OK" in await reader.readline()
        writer.close()


async def test_others_have_a_turn_once_the_time_of_a_piece_is_over() -> None:
    now_s = 0.0
    yielder = LoopYielder(1.0, clock=lambda: now_s)
    others: list[float] = []

    async def other() -> None:
        while True:
            others.append(now_s)
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    for _ in range(12):
        now_s += 0.25
        await yielder.pause()
    beside.cancel()
    assert others == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("items", [[], ["a"], ["a", 2], [{"x": [1, "\u00e4"]}, None, "z" * LARGE_BYTES]])
async def test_a_list_of_texts_is_the_text_of_the_list(items: list[object]) -> None:
    text = await fill_list(to_json(Outcomes([])), [to_json(item) for item in items])
    assert json.loads(text) == {"results": items} and text == to_json(Outcomes(items))
