"""The native routes over a fake sandbox: schemas, order, streaming, invalid input."""

import json
from typing import Any

import pytest

from rocstar.sandbox.service.validation import ServiceLimits
from rocstar.sandbox.types import ExecRequest, Limits, SandboxError
from tests.fakes.sandbox import FakeSandbox, error, ok, result_from_json, timeout

GONE = SandboxError("the supervisor died twice", kind="supervisor_died", retryable=True)


def echo() -> FakeSandbox:
    """Prints the program's own text, so that a result in the wrong place shows."""
    return FakeSandbox(lambda request: ok(request.code))


async def test_run_gives_the_result_with_every_field(serve: Any) -> None:
    result = ok("1\n", value="42")
    async with serve(FakeSandbox({"print(1)\n42": result})) as service:
        status, fields = await service.post("/v1/run", {"code": "print(1)\n42"})
    assert status == 200
    assert result_from_json(fields) == result


async def test_run_passes_every_field_on(serve: Any) -> None:
    fake = echo()
    limits = {"wall_s": 1.5, "cpu_s": 2, "memory_bytes": 1 << 28, "output_bytes": 100, "file_bytes": 0}
    body = {"code": "é\n", "stdin": "in\0put", "limits": limits, "flavour": "verifier", "seed": 2**64 - 1}
    async with serve(fake) as service:
        assert (await service.post("/v1/run", {**body, "deadline_s": 5}))[0] == 200
    assert fake.requests == [
        ExecRequest(code="é\n", stdin="in\0put", limits=Limits(**limits), flavour="verifier", seed=2**64 - 1)
    ]


async def test_a_failure_of_ours_is_no_result(serve: Any) -> None:
    failures = [
        (GONE, 503),
        (SandboxError("over", kind="deadline", retryable=True), 504),
        (SandboxError("full", kind="full", retryable=True), 429),
        (SandboxError("none", kind="missing_import", retryable=False), 501),
        (SandboxError("what", kind="zygote_start", retryable=False), 500),
    ]
    async with serve(FakeSandbox({failure.kind: failure for failure, _ in failures})) as service:
        for failure, status in failures:
            fields = {"kind": failure.kind, "message": str(failure), "retryable": failure.retryable}
            assert await service.post("/v1/run", {"code": failure.kind}) == (status, {"error": fields})
            assert await service.metric("failures_total", kind=failure.kind) == 1
        status, answer = await service.post("/v1/run", {"code": "x", "deadline_s": 1e-9})
        assert (status, answer["error"]["kind"]) == (504, "deadline")


async def test_a_batch_comes_back_in_the_order_of_its_calls(serve: Any) -> None:
    codes = [f"print({i})" for i in range(100)]
    async with serve(echo()) as service:  # the fake ends its calls last to first
        status, answer = await service.post("/v1/batch", {"requests": [{"code": code} for code in codes]})
    assert status == 200
    assert [result["stdout"] for result in answer["results"]] == codes


async def test_one_bad_call_does_not_harm_the_others(serve: Any) -> None:
    fake = FakeSandbox({"good": ok("1"), "late": timeout(), "gone": GONE, "wrong": error("NameError\n")})
    bad: list[tuple[Any, str]] = [
        ({"code": 5}, "requests[1].code"),
        ({}, "requests[2].code"),
        ({"code": "a\0b"}, "requests[3].code"),
        ({"code": "'\ud800'"}, "requests[4].code"),
        ({"code": "x", "stdin": ["a"]}, "requests[5].stdin"),
        ({"code": "x", "stdin": "\udfff"}, "requests[6].stdin"),
        ({"code": "x", "flavour": "ruby"}, "requests[7].flavour"),
        ({"code": "x", "limits": {"wall_s": "4"}}, "requests[8].limits.wall_s"),
        ({"code": "x", "limits": {"memory": 1}}, "requests[9].limits.memory"),
        ({"code": "x", "limits": {"cpu_s": True}}, "requests[10].limits.cpu_s"),
        ({"code": "x", "limits": {"cpu_s": 1.5}}, "requests[11].limits.cpu_s"),
        ({"code": "x", "limits": 7}, "requests[12].limits"),
        ({"code": "x", "seed": -1}, "requests[13].seed"),
        ({"code": "x", "seed": 1.0}, "requests[14].seed"),
        ({"code": "x", "colour": 1}, "requests[15].colour"),
        ("print(1)", "requests[16]"),
        (None, "requests[17]"),
        ({"code": "x" * (16 << 20) + "x"}, "requests[18].code"),
        ({"code": "x", "limits": {"memory_bytes": 10**400}}, "requests[19].limits.memory_bytes"),
    ]
    requests = [{"code": "good"}, *(item for item, _ in bad), *({"code": c} for c in ("late", "gone", "wrong"))]
    async with serve(fake, max_body_bytes=64 << 20) as service:
        status, answer = await service.post("/v1/batch", {"requests": requests})
    assert status == 200
    results = answer["results"]
    assert [results[i]["error"]["field"] for i in range(1, len(bad) + 1)] == [field for _, field in bad]
    assert all(not results[i]["error"]["retryable"] for i in range(1, len(bad) + 1))
    assert results[0]["stdout"] == "1"
    late, gone, wrong = results[-3:]
    assert (late["status"], gone["error"]["kind"], wrong["stderr"]) == ("timeout", GONE.kind, "NameError\n")
    assert [request.code for request in fake.requests] == ["wrong", "gone", "late", "good"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/batch", {"requests": []}, "requests"),
        ("/v1/batch", {}, "requests"),
        ("/v1/batch", {"requests": {"code": "x"}}, "requests"),
        ("/v1/batch", {"requests": [{"code": "x"}], "stream": 1}, "stream"),
        ("/v1/batch", {"requests": [{"code": "x"}], "deadline_s": 0}, "deadline_s"),
        ("/v1/batch", {"requests": [{"code": "x"}], "sream": True}, "sream"),
        ("/v1/batch", [], "body"),
        ("/v1/run", {"code": "x", "deadline_s": True}, "deadline_s"),
        ("/v1/run", {"code": "x", "deadline_s": "4"}, "deadline_s"),
        ("/v1/run", {"code": "x", "limits": {"wall_s": 1e9}}, "limits.wall_s"),
        ("/v1/run", b'{"code":"x","limits":{"wall_s":1e999}}', "limits.wall_s"),
        ("/v1/run", {"code": "x", "limits": {"wall_s": 4000.0}}, "limits.wall_s"),
        ("/v1/run", {"code": None}, "code"),
        ("/v1/run", {"code": "x", "flavour": ["stdlib"]}, "flavour"),
        ("/v1/run", "x", "body"),
    ],
)
async def test_a_mistake_of_the_whole_is_a_400_that_names_the_field(
    serve: Any, path: str, body: Any, field: str
) -> None:
    fake = echo()
    async with serve(fake) as service:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = await service.post(path, data=data)
    assert (status, answer["error"]["field"], fake.requests) == (400, field, [])


NO_JSON = (b"{", b"\xff", b"[" * 100_000, b'{"code":' * 5000, b'{"code":NaN}', b"\xef\xbb\xbf{}")


async def test_what_is_no_json_is_a_400(serve: Any) -> None:
    async with serve(echo()) as service:
        for path in ("/v1/run", "/v1/batch", "/v1/sessions"):
            for body in (*NO_JSON, b'{"seed":' + b"1" * 5000 + b"}"):
                status, answer = await service.post(path, data=body)
                assert (status, answer["error"]["field"]) == (400, "body"), (path, body[:20])
        assert (await service.post("/v1/run", {"code": "x"}))[0] == 200


@pytest.mark.parametrize("how", ["header", "field"])
async def test_a_stream_has_a_line_per_call_as_they_end(serve: Any, how: str) -> None:
    body: dict[str, Any] = {"requests": [{"code": "a"}, {"code": 1}, {"code": "b"}]}
    headers = {"Accept": "application/x-ndjson"} if how == "header" else {}
    if how == "field":
        body["stream"] = True
    async with serve(echo()) as service, service.http.post("/v1/batch", json=body, headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        lines = [json.loads(line) async for line in answer.content]
    assert [line["index"] for line in lines] == [1, 2, 0]
    assert lines[0]["error"]["field"] == "requests[1].code"
    assert [line["stdout"] for line in lines[1:]] == ["b", "a"]


async def test_a_batch_of_mistakes_alone_runs_nothing(serve: Any) -> None:
    fake = echo()
    async with serve(fake) as service:
        for stream in (False, True):
            body = {"requests": [{"code": 1}, {"code": 2}], "stream": stream}
            async with service.http.post("/v1/batch", json=body) as answer:
                assert (answer.status, (await answer.text()).count("bad_request")) == (200, 2)
    assert fake.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_the_sandbox_forgets_is_an_error(serve: Any, stream: bool) -> None:
    class Forgetful(FakeSandbox):
        async def run_batch(self, requests: Any, *, deadline: float | None = None) -> Any:
            yield 1, ok("b")

    async with serve(Forgetful({})) as service:
        body = {"requests": [{"code": "a"}, {"code": "b"}], "stream": stream}
        async with service.http.post("/v1/batch", json=body) as answer:
            text = await answer.text()
            assert '"kind":"lost"' in text and '"stdout":"b"' in text
        assert service.service.metrics.in_flight == 0


async def test_a_flavour_is_chosen_by_the_imports_unless_it_is_named(serve: Any) -> None:
    fake = echo()
    async with serve(fake) as service:
        for code, more in (("import numpy", {}), ("import numpy", {"flavour": "stdlib"}), ("1", {})):
            await service.post("/v1/run", {"code": code, **more})
    assert [request.flavour for request in fake.requests] == ["numeric", "stdlib", "stdlib"]


async def test_a_limit_out_of_bounds_is_told_those_of_this_service(serve: Any) -> None:
    service_limits = ServiceLimits(flavours=("stdlib",), max_wall_s=20.0, max_memory_bytes=1 << 30)
    async with serve(echo(), service_limits=service_limits) as service:
        for name, value, expected in (
            ("wall_s", 100000, "this service takes 0.001 to 20.0"),
            ("wall_s", 30.0, "this service takes 0.001 to 20.0"),
            ("wall_s", 0, "this service takes 0.001 to 20.0"),
            ("memory_bytes", 1 << 50, f"this service takes {1 << 20} to {1 << 30}"),
            ("memory_bytes", 2 << 30, f"this service takes {1 << 20} to {1 << 30}"),
            ("cpu_s", 100000, "this service takes 1 to 86400"),
            ("output_bytes", 1 << 40, f"this service takes 0 to {64 << 20}"),
            ("files", 1.0, "give a whole number"),
            ("wall_s", "4", "give a number"),
        ):
            for path, body in (("/v1/run", {"code": "x"}), ("/v1/sessions", {})):
                status, answer = await service.post(path, {**body, "limits": {name: value}})
                message = f"limits.{name} is {value!r}; {expected}"
                assert (status, answer["error"]["message"]) == (400, message)


async def test_limits_that_are_not_named_are_the_services_own(serve: Any) -> None:
    own = Limits(memory_bytes=200 << 20)
    service_limits = ServiceLimits(flavours=("stdlib",), max_memory_bytes=200 << 20, default_limits=own)
    fake = echo()
    async with serve(fake, service_limits=service_limits) as service:
        status, _ = await service.post("/v1/run", {"code": "x", "limits": {"wall_s": 1.0}})
    assert (status, fake.requests[0].limits) == (200, Limits(wall_s=1.0, memory_bytes=200 << 20))
