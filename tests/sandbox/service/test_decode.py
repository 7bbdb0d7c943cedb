"""Request decoding: any bytes become typed calls or a `RequestError`."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.http.errors import RequestError, SchemaError
from rocstar.sandbox.service.app import error_response
from rocstar.sandbox.service.dialects.code_judge import JudgeOptions, decode_submission, decode_submissions
from rocstar.sandbox.service.dialects.native import BatchCall, decode_batch, decode_cell, decode_run, decode_session
from rocstar.sandbox.service.dialects.sandbox_fusion import decode_run_code, decode_run_jupyter
from rocstar.sandbox.service.openapi import body_models
from rocstar.sandbox.service.validation import SCRIPT_END, BodyModel, ServiceLimits, find_field_errors, parse_json
from rocstar.sandbox.types import ExecRequest, Limits

RULES = ServiceLimits(flavours=("stdlib", "numeric"))
JUDGED = {"service_limits": RULES, "limits": JudgeOptions().limits, "owner": "a"}
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "/v1/run": partial(decode_run, service_limits=RULES, owner="a"),
    "/v1/batch": partial(decode_batch, service_limits=RULES),
    "/v1/sessions": partial(decode_session, service_limits=RULES),
    "/v1/sessions/x/run": partial(decode_cell, service_limits=RULES),
    "/run": partial(decode_submission, **JUDGED),
    "/run/batch": partial(decode_submissions, **JUDGED),
    "/run_code": partial(decode_run_code, service_limits=RULES),
    "/run_jupyter": partial(decode_run_jupyter, service_limits=RULES),
}

NAMES = st.sampled_from(
    [
        *("code", "stdin", "limits", "flavour", "seed", "deadline_s", "requests", "stream", "wall_s", "cpu_s"),
        *("memory_bytes", "type", "solution", "input", "expected_output", "sub_id", "options", "submissions"),
        *("language", "files", "fetch_files", "run_timeout", "memory_limit_MB", "cells", "kernel"),
        "total_timeout",
    ]
)
TEXTS = st.one_of(
    st.sampled_from(["print(1)", "import numpy", "python", "cpp", "math", "batch", "stdlib", "auto", "\ud800", "a\0"]),
    st.text(max_size=20),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.one_of(NAMES, TEXTS), inner, max_size=6)),
    max_leaves=12,
)
BODIES = st.one_of(
    st.binary(max_size=60),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(NAMES, VALUES, max_size=8).map(lambda value: json.dumps(value).encode()),
)


def decoded(path: str, body: bytes) -> Any:
    """Return the typed calls, or None for a RequestError, of which the response is checked."""
    try:
        return DECODERS[path](body)
    except RequestError as caught:
        error = caught
    answer = error_response(path, error)
    assert 400 <= answer.status < 500
    assert isinstance(answer.body, bytes)
    constants: list[str] = []
    json.loads(answer.body, parse_constant=constants.append)
    assert not constants, "no JSON"
    assert error.field, "a refusal names the field at fault"
    assert len(answer.body) < 100_000
    return None


@settings(max_examples=200, deadline=None)
@given(path=st.sampled_from(sorted(DECODERS)), body=BODIES)
def test_any_body_is_calls_or_a_refusal(path: str, body: bytes) -> None:
    decoded(path, body)


ITEMS = st.one_of(
    st.fixed_dictionaries({"code": TEXTS}, optional={"stdin": TEXTS, "seed": st.integers(), "limits": VALUES}), VALUES
)


@settings(max_examples=100, deadline=None)
@given(items=st.lists(ITEMS, min_size=1, max_size=8))
def test_an_item_of_a_batch_is_judged_as_if_it_were_alone(items: list[Any]) -> None:
    body = json.dumps({"requests": items}).encode()
    call = decoded("/v1/batch", body)
    if call is None:  # no strict JSON: NaN or Infinity somewhere
        assert b"NaN" in body or b"Infinity" in body
        return
    assert isinstance(call, BatchCall)
    assert len(call.requests) == len(items)
    for index, (item, outcome) in enumerate(zip(items, call.requests, strict=True)):
        alone = decode_batch(json.dumps({"requests": [item]}).encode(), RULES).requests[0]
        if isinstance(outcome, ExecRequest):
            assert outcome == alone
        else:
            assert isinstance(alone, RequestError)
            assert str(outcome).replace(f"requests[{index}]", "requests[0]") == str(alone)


REQUESTS = st.builds(
    ExecRequest,
    code=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    stdin=st.text(st.characters(exclude_categories=["Cs"])),
    flavour=st.sampled_from(["stdlib", "numeric"]),
    seed=st.none() | st.integers(0, 2**64 - 1),
    limits=st.builds(
        Limits,
        wall_s=st.floats(0.001, 3600.0),
        cpu_s=st.integers(1, 86_400),
        memory_bytes=st.integers(1 << 20, 1 << 36),
        output_bytes=st.integers(0, 1 << 26),
        file_bytes=st.integers(0, 1 << 46),
    ),
)


@settings(max_examples=200, deadline=None)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=4))
def test_every_request_can_be_sent(requests: list[ExecRequest]) -> None:
    """Decoding is the inverse of writing a request's fields down."""
    items = [
        {
            **{name: getattr(request, name) for name in ("code", "stdin", "flavour", "seed")},
            "limits": {name: getattr(request.limits, name) for name in Limits.__dataclass_fields__},
        }
        for request in requests
    ]
    assert decode_batch(json.dumps({"requests": items}).encode(), RULES).requests == requests


KINDS: dict[str, BodyModel[Any]] = {model.type.__name__: model for model in body_models(RULES)}


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(KINDS)), body=BODIES)
def test_what_is_decoded_at_once_has_no_mistake(name: str, body: bytes) -> None:
    """The fast and the slow validation of a body agree."""
    model = KINDS[name]
    found = model.decode(body)
    if found is not None:
        value = parse_json(body)
        assert list(find_field_errors(value, model.type)) == []
        assert msgspec.structs.asdict(msgspec.convert(value, model.type)) == msgspec.structs.asdict(found)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_field_is_looked_at(name: str) -> None:
    """A value that no field accepts is an error at that field."""
    model = KINDS[name]
    for item in msgspec.structs.fields(model.type):
        wrong = {item.name: {"no": {"such": "value"}}} if item.name != "options" else {item.name: 5}
        assert model.decode(json.dumps(wrong).encode()) is None
        (found, *_) = [mistake for mistake in find_field_errors(wrong, model.type) if mistake.loc[:1] == (item.name,)]
        assert found.msg and found.fix, found


NESTED = b"[" * 30_000 + b"]" * 30_000
IGNORED = b'{"type":"python","solution":"x",%b}'
HOSTILE = {
    "nested lists": b"[" * 60_000,
    "nested objects": b'{"code":' * 7_000,
    "nested in a field": b'{"solution":' + NESTED + b"}",
    "nested in an ignored field": IGNORED % (b'"x":' + NESTED),
    "long integer": b'{"seed":' + b"1" * 60_000 + b"}",
    "long integer in an ignored field": IGNORED % (b'"x":' + b"1" * 60_000),
    "long name": json.dumps({"x" * 60_000: 1}).encode(),
    "many names": json.dumps({f"k{i}": 1 for i in range(6_000)}).encode(),
    "many bad items": json.dumps({"requests": [{f"k{i}": 1} for i in range(4_000)]}).encode(),
    "no UTF-8 in an ignored field": IGNORED % b'"x":"\xff"',
    "half a pair in a name": IGNORED % b'"\\ud800":1',
    "NaN": b'{"code":"x","language":"python","run_timeout":NaN,"memory_limit_MB":NaN}',
    "infinity": b'{"code":"x","language":"python","run_timeout":1e999}',
}


@pytest.mark.parametrize("path", sorted(DECODERS))
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_body_of_61_kb_has_one_short_answer(name: str, path: str) -> None:
    call = decoded(path, HOSTILE[name])
    if call is not None:  # each item of a batch has its own
        assert (name, path) == ("many bad items", "/v1/batch")
        assert all(isinstance(item, RequestError) and len(str(item)) < 200 for item in call.requests)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/run", {"type": "python", "solution": "x", "options": {"k" * 200_000: 1, "é" * 200_000: 2}}),
        ("/run_code", {"code": "x", "language": "python", "files": {"../" + "k" * 200_000: "YQ=="}}),
        ("/run_jupyter", {"cells": ["x"], "files": {"k" * 200_000: 1}}),
    ],
)
def test_a_refusal_is_short_also_of_names_that_are_long(path: str, body: Any) -> None:
    with pytest.raises(SchemaError) as error:
        DECODERS[path](json.dumps(body).encode())
    assert len(error.value.answer) < 4096 and len(error.value.field) < 200
    assert json.loads(error.value.answer)["detail"][0]["loc"][0] == "body"


def test_what_is_no_base64_is_not_called_missing() -> None:
    with pytest.raises(RequestError, match=r"^files\.x: the content is not base64; give base64$"):
        decode_run(b'{"code":"x","files":{"x":"!!"}}', RULES)


@pytest.mark.parametrize("path", sorted(DECODERS))
def test_nesting_that_the_parser_just_takes_is_no_accident(path: str) -> None:
    """Models are converted, and refusals written, on a stack that is as deep as the parser's was."""
    for depth in range(900, 1000):
        deep = b"[" * depth + b"]" * depth
        for body in (b'{"requests":[%s]}', b'{"code":"x","limits":%s}', b'{"submissions":[{"x":%s}]}'):
            decoded(path, body % deep)


@pytest.mark.parametrize(
    ("path", "more"), [("/v1/run", b""), ("/v1/sessions/x/run", b""), ("/run_code", b'"language":"python",')]
)
def test_of_a_field_that_comes_twice_the_last_counts(path: str, more: bytes) -> None:
    call = decoded(path, b'{"code":"a",%b"code":"b"}' % more)
    (program,) = [one for one in (call if isinstance(call, tuple) else [call]) if hasattr(one, "code")]
    assert program.code.removesuffix(SCRIPT_END) == "b"


def test_an_answer_to_mistakes_stays_small() -> None:
    body = b'{"submissions":[' + b",".join([b"{}"] * 100_000) + b"]}"
    service_limits = ServiceLimits(flavours=RULES.flavours, max_calls_per_batch=200_000)
    with pytest.raises(RequestError) as error:
        decode_submissions(body, service_limits, JUDGED["limits"])
    answer = error_response("/run/batch", error.value)
    assert isinstance(answer.body, bytes) and len(answer.body) < 20_000
