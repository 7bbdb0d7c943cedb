"""An answer that is written in pieces is the one that is written at once, and no piece is long."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.http import responses
from rocstar.sandbox.http.responses import encode_in_chunks, to_json
from rocstar.sandbox.service.dialects.sandbox_fusion import CellAnswer, CellFault, Command, NotebookAnswer
from rocstar.sandbox.service.dialects.verl_tool import InvalidAction, Observations
from rocstar.sandbox.service.results import Failure, FailureFields
from rocstar.sandbox.testing import FakeSandbox, ok
from rocstar.sandbox.types import Display, ExecResult, Status

PIECE = 20
TEXTS = st.text(
    st.sampled_from(["a", '"', "\\", "\n", "\x01", "\u00e9", "\u6f22", "\U0001f600"]), max_size=70
)
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
FAILURES = st.builds(
    lambda message: Failure(FailureFields(kind="full", message=message, retryable=True)), TEXTS
)
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
OBSERVATIONS = st.builds(
    lambda texts: Observations(
        observations=[*texts, InvalidAction("none")], dones=[True], valids=[False], processing_time_ms=0.25
    ),
    st.lists(TEXTS, max_size=3),
)
ANSWERS = st.one_of(RESULTS, FAILURES, NOTEBOOKS, OBSERVATIONS, RESULTS.map(lambda one: {"result": one}))


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
    encode_in_chunks(
        {"result": NotebookAnswer(status="Success", driver=None, cells=[cell], files={"a": long})}
    )
    assert sum(map(len, pieces)) > 3000 and max(map(len, pieces)) <= PIECE


async def test_a_long_answer_is_written_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a short one at once."""
    asked: list[Any] = []
    monkeypatch.setattr(responses, "encode_in_chunks", lambda value: asked.append(value) or b"pieces")
    assert await responses.encode_json({"a": 1}, responses.LONG_CHARS - 1) == b'{"a":1}' and not asked
    assert await responses.encode_json({"a": 1}, responses.LONG_CHARS) == b"pieces" and asked == [{"a": 1}]


ASKED = {
    "/v1/run": {"code": "a"},
    "/v1/batch": {"requests": [{"code": "a"}, {"code": 1}]},
    "/run/batch": {"sub_id": "all", "submissions": [{"type": "python", "solution": "a", "sub_id": "1"}]},
    "/run_code": {"code": "a", "language": "python"},
    "/get_observation": {"trajectory_ids": ["1"], "actions": ["<python>a</python>"]},
}


@pytest.mark.parametrize("path", sorted(ASKED))
async def test_an_answer_that_is_sent_in_pieces_is_the_same(
    serve: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The server would copy a long one while nobody else has a turn."""
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
