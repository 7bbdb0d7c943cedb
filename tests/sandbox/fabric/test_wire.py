"""Entries and answers arrive as they were sent; anything else is refused."""

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.sandbox.fabric.held import encode_portions
from rocstar.sandbox.fabric.wire import (
    Answer,
    WireCall,
    WireError,
    decode_answers,
    decode_entry,
    encode_answers,
    encode_entry,
)
from rocstar.sandbox.fabric.workers import WorkerInfo, decode_workers, encode_worker
from rocstar.sandbox.testing import ok, timeout
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, Status

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


@given(st.sampled_from(["stdlib", "x y"]).flatmap(lambda name: st.lists(calls(name), min_size=1, max_size=5)))
def test_an_entry_arrives_as_it_was_sent(entry: list[WireCall]) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@given(st.lists(st.tuples(refs, ids, results), max_size=5))
def test_results_arrive_as_they_were_sent(sent: list[tuple[str, int, ExecResult]]) -> None:
    answers = [Answer(ref=ref, call_id=call_id, outcome=result) for ref, call_id, result in sent]
    assert decode_answers(encode_answers(answers)) == answers


@given(st.lists(st.tuples(refs, st.none() | ids, texts, texts, st.booleans()), max_size=5))
def test_errors_arrive_as_they_were_sent(sent: list[tuple[str, int | None, str, str, bool]]) -> None:
    answers = [
        Answer(ref=ref, call_id=call_id, outcome=SandboxError(text, kind=kind, retryable=retryable))
        for ref, call_id, text, kind, retryable in sent
    ]
    arrived = []
    for answer in decode_answers(encode_answers(answers)):
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
    answers = json.loads(encode_answers([Answer(ref="stdlib/1-0", call_id=1, outcome=ok("x"))]))
    renamed: Any = {**answers, "fields": [name.replace("stdout", "out") for name in answers["fields"]]}
    newer: Any = {**answers, "v": 2}
    for message in (renamed, newer):
        with pytest.raises(WireError, match="version"):
            decode_answers(json.dumps(message).encode())


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
    calls = [WireCall(id=n, request=request, remaining_s=None) for n, request in enumerate(requests)]
    assert [call.request for call in decode_entry(encode_entry(calls))] == requests


def test_an_entry_has_one_flavour() -> None:
    mixed = [
        WireCall(id=n, request=ExecRequest(code="", flavour=flavour), remaining_s=None)
        for n, flavour in enumerate(("stdlib", "numeric"))
    ]
    with pytest.raises(ValueError, match="one flavour"):
        encode_entry(mixed)


def test_what_is_too_large_is_an_error_of_its_own_call_only() -> None:
    answers = [
        Answer(ref="stdlib/1-0", call_id=1, outcome=ok("x" * 5_000)),
        Answer(ref="stdlib/1-0", call_id=2, outcome=timeout()),
    ]
    first, second = (answer for blob in encode_portions(answers, 2_000) for answer in decode_answers(blob))
    assert isinstance(first.outcome, SandboxError)
    assert not first.outcome.retryable
    assert "output_bytes" in str(first.outcome)
    assert second == answers[1]


def test_workers_of_another_version_are_left_out() -> None:
    info = WorkerInfo(name="a", capacity=3, flavours=("stdlib", "numeric"))
    members = [encode_worker(info).encode(), b"{}", b"nonsense", b"[1]"]
    assert decode_workers(members) == [info]
