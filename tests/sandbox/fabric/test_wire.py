"""Entries and answers arrive as they were sent; anything else is refused."""

from dataclasses import fields, make_dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox.fabric.chunks import CHUNK_BYTES, CHUNK_CHARS, LONG, grouped
from rocstar.sandbox.fabric.pending_answers import split_answers
from rocstar.sandbox.fabric.wire import LIGHT, Answer, EntryDraft, WireCall, WireError, encode_answers, format_digest
from rocstar.sandbox.types import Display, ExecRequest, ExecResult, Limits, SandboxError, Status
from tests.fakes.sandbox import ok, timeout

from .harness import decode_answers, decode_entry, encode_entry

# Lone surrogates, NULs and pairs of surrogates that JSON's escapes would join are all text to us.
texts = st.text(st.characters(), max_size=30) | st.sampled_from(["\ud83d\ude00", "\x00", "\udcff", "é\u2028"])
limits = st.builds(
    Limits,
    wall_s=st.floats(0.001, 86_400.0),
    cpu_s=st.integers(1, 86_400),
    memory_bytes=st.integers(1 << 20, 1 << 46),
    output_bytes=st.integers(0, 1 << 20),
    file_bytes=st.integers(0, 1 << 46),
    files=st.integers(0, 65_536),
)
ids = st.integers(1, (1 << 63) - 1)


def requests(flavour: str) -> st.SearchStrategy[ExecRequest]:
    seeds = st.none() | st.integers(0, (1 << 64) - 1)
    return st.builds(
        ExecRequest,
        code=texts,
        stdin=texts,
        limits=limits,
        seed=seeds,
        flavour=st.just(flavour),
        files=st.dictionaries(st.sampled_from(["a", "b/c", "é"]), st.binary(max_size=9), max_size=2),
    )


def calls(flavour: str) -> st.SearchStrategy[WireCall]:
    remaining = st.none() | st.floats(-1e3, 1e6)
    return st.builds(WireCall, id=ids, request=requests(flavour), remaining_s=remaining)


def entries(flavour: str) -> st.SearchStrategy[list[WireCall]]:
    return st.lists(calls(flavour), min_size=1, max_size=5, unique_by=lambda call: call.id)


results = st.builds(
    ExecResult,
    status=st.just(Status.ERROR),
    exit_code=st.integers(1, 255),
    signal=st.none(),
    stdout=texts,
    stderr=texts,
    stdout_truncated=st.booleans(),
    stderr_truncated=st.booleans(),
    value=st.none() | texts,
    wall_s=st.floats(0, 1e6),
    cpu_s=st.floats(0, 1e6),
    peak_memory_bytes=st.integers(0, 1 << 46),
    isolation=texts,
    tier=st.sampled_from(["A", "B", "none"]),
)
refs = st.sampled_from(["stdlib/1-0", "stdlib/1-1", "numeric/1-0"])


@given(st.sampled_from(["stdlib", "x y"]).flatmap(lambda name: entries(name)))
def test_an_entry_arrives_as_it_was_sent(entry: list[WireCall]) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@given(st.lists(st.tuples(refs, ids, results), max_size=5))
def test_results_arrive_as_they_were_sent(sent: list[tuple[str, int, ExecResult]]) -> None:
    answers = [Answer(ref=ref, call_id=call_id, outcome=result) for ref, call_id, result in sent]
    assert decode_answers(*encode_answers(answers)) == answers


long_texts = st.sampled_from(["x", "é", "漢", "\U0001f600", "\ud83d\ude00", "\udcff", "\x00é漢"])
long_texts = long_texts.map(lambda some: some * (CHUNK_CHARS // len(some) + LONG))


@given(long_texts, texts, st.binary(max_size=99))
def test_a_long_entry_arrives_as_it_was_sent(long: str, short: str, some: bytes) -> None:
    files = {"a": some, "b": some * LONG, "c": bytes(CHUNK_BYTES + 1)}
    requests = [
        ExecRequest(code=long, stdin=short, flavour="x", files=files),
        ExecRequest(code=short, stdin=long, flavour="x"),
    ]
    for request in requests:
        draft = EntryDraft([(7, request)], apart=True)
        blob = draft.encode([0.5])
        assert decode_entry(blob, draft.chunks) == [WireCall(id=7, request=request, remaining_s=0.5)]
        assert len(blob) < LIGHT
        assert max(map(len, draft.chunks)) <= CHUNK_BYTES


@given(long_texts, texts, st.binary(max_size=99))
def test_a_long_result_arrives_as_it_was_sent(long: str, short: str, some: bytes) -> None:
    shown = (Display("image/png", some * LONG), Display("text/html", some))
    for texts_of in ((long, short, None), (short, long, long)):
        stdout, stderr, value = texts_of
        result = replace(ok(stdout, value=value), stderr=stderr, files={"f": some * LONG}, displays=shown)
        blob, chunks = encode_answers([Answer(ref="stdlib/1-0", call_id=1, outcome=result)], apart=True)
        (answer,) = decode_answers(blob, chunks)
        assert answer.outcome == result
        assert len(blob) < LIGHT
        assert max(map(len, chunks)) <= CHUNK_BYTES


def test_pieces_that_are_not_there_are_no_text() -> None:
    draft = EntryDraft([(1, ExecRequest(code="é" * LONG, flavour="x"))], apart=True)
    blob = draft.encode([None])
    for chunks in ([], [b"\xff"]):
        with pytest.raises(WireError):
            decode_entry(blob, chunks)


@given(st.lists(st.integers(1, CHUNK_BYTES), max_size=20))
def test_a_command_carries_a_piece_or_as_much_of_many(sizes: list[int]) -> None:
    groups = list(grouped(sizes))
    assert [number for group in groups for number in group] == list(range(len(sizes)))
    assert all(sum(sizes[number] for number in group) <= CHUNK_BYTES for group in groups)


@given(st.lists(st.tuples(refs, st.none() | ids, texts, texts, st.booleans()), max_size=5))
def test_errors_arrive_as_they_were_sent(sent: list[tuple[str, int | None, str, str, bool]]) -> None:
    answers = [
        Answer(ref=ref, call_id=call_id, outcome=SandboxError(text, kind=kind, retryable=retryable))
        for ref, call_id, text, kind, retryable in sent
    ]
    arrived = []
    for answer in decode_answers(*encode_answers(answers)):
        error = answer.outcome
        assert isinstance(error, SandboxError)
        arrived.append((answer.ref, answer.call_id, str(error), error.kind, error.retryable))
    assert arrived == sent


@given(st.binary(max_size=40))
def test_garbage_is_refused(blob: bytes) -> None:
    for decode in (decode_entry, decode_answers):
        with pytest.raises(WireError):
            decode(blob)


def test_other_fields_are_refused() -> None:
    """A node of another version must not guess."""
    answers = msgspec.msgpack.decode(encode_answers([Answer(ref="stdlib/1-0", call_id=1, outcome=ok("x"))])[0])
    (ref, call_id, row), *_ = answers["results"]
    renamed = {("out" if name == "stdout" else name): value for name, value in row.items()}
    for other in (
        {"results": [(ref, call_id, renamed)]},
        {"results": [(ref, call_id, {**row, "more": 1})]},
        {"v": answers["v"] + 1},
        {"more": 1},
    ):
        with pytest.raises(WireError, match="version"):
            decode_answers(msgspec.msgpack.encode({**answers, **other}))


def test_the_version_tells_of_each_field_and_default() -> None:
    """A default is not sent: nodes whose defaults differ would run something else."""

    def version(**defaults: Any) -> int:
        return format_digest(make_dataclass("Kind", [(name, Any, value) for name, value in defaults.items()]))

    assert len({version(a=1, b=2), version(a=1, b=3), version(a=1, c=2), version(a=1)}) == 4


def test_no_field_of_a_request_is_forgotten() -> None:
    """A new field has to be sent too, or a worker would silently run something else."""
    sent = {"code", "stdin", "limits", "flavour", "seed", "files", "owner", "fetch", "displays", "weight"}
    assert {field.name for field in fields(ExecRequest)} == sent


def test_an_owner_goes_along_with_and_without_files() -> None:
    requests = [
        ExecRequest(code="1", owner="a"),
        ExecRequest(code="2", owner="b", files={"f": b"x"}),
        ExecRequest(code="5", owner="c", weight=7),
        ExecRequest(code="3", files={"f": b"x"}),
        ExecRequest(code="4"),
    ]
    calls = [WireCall(id=n, request=request, remaining_s=None) for n, request in enumerate(requests, 1)]
    assert [call.request for call in decode_entry(encode_entry(calls))] == requests


def test_an_entry_has_one_flavour() -> None:
    mixed = [
        WireCall(id=n, request=ExecRequest(code="", flavour=flavour), remaining_s=None)
        for n, flavour in enumerate(("stdlib", "numeric"))
    ]
    with pytest.raises(ValueError, match="one flavour"):
        encode_entry(mixed)


def test_what_is_long_travels_alone() -> None:
    short = [Answer(ref="stdlib/1-0", call_id=n, outcome=timeout()) for n in range(1, 101)]
    long = Answer(ref="stdlib/1-0", call_id=101, outcome=ok("x" * LIGHT))
    found = list(split_answers([*short[:50], long, *short[50:]]))
    assert [answer for portion in found for answer in portion] == [*short[:50], long, *short[50:]]
    assert [portion for portion in found if long in portion] == [[long]]
