"""SandboxFusion's dialect over a fake sandbox. The fields are those of its `sandbox_api.py` at 469de08."""

import asyncio
import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox.child.import_scan import MAX_SCANNED
from rocstar.sandbox.http import responses
from rocstar.sandbox.http.responses import encode_json
from rocstar.sandbox.service.dialects import sandbox_fusion
from rocstar.sandbox.service.dialects.sandbox_fusion import MAX_GIVEN_BYTES
from rocstar.sandbox.service.results import MAX_JSON_FILES_BYTES
from rocstar.sandbox.service.validation import SCRIPT_END, ServiceLimits
from rocstar.sandbox.types import MAX_TEXT_BYTES, Display, ExecRequest, ExecResult, SandboxError, SessionLost
from tests.fakes.sandbox import FakeSandbox, error, ok, signaled, timeout

CODE_FIELDS = ["status", "message", "compile_result", "run_result", "executor_pod_name", "files"]
JUPYTER_FIELDS = ["status", "message", "driver", "cells", "executor_pod_name", "files"]
COMMAND_FIELDS = ["status", "execution_time", "return_code", "stdout", "stderr"]

VERL = {
    "compile_timeout": 10,
    "run_timeout": 10,
    "code": "print(1)",
    "stdin": "",
    "memory_limit_MB": 1024,
    "language": "python",
    "files": {},
    "fetch_files": [],
}
"""The eight keys that verl's client posts."""


async def run(serve: Any, result: Any, **fields: Any) -> tuple[int, dict[str, Any]]:
    async with serve(FakeSandbox({}, otherwise=result)) as service:
        status, answer = await service.post("/run_code", {"code": "x", "language": "python", **fields})
    return status, answer


async def test_a_run_has_exactly_the_originals_fields(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok("1\n", value="42"))
    async with serve(fake) as service:
        status, answer = await service.post("/run_code", VERL)
    assert (status, list(answer), list(answer["run_result"])) == (200, CODE_FIELDS, COMMAND_FIELDS)
    assert (answer["status"], answer["compile_result"], answer["files"]) == ("Success", None, {})
    result = {**answer["run_result"], "execution_time": 0}
    assert result == {"status": "Finished", "execution_time": 0, "return_code": 0, "stdout": "1\n", "stderr": ""}
    (request,) = fake.requests
    assert (request.code, request.stdin) == ("print(1)" + SCRIPT_END, "")
    assert (request.limits.wall_s, request.limits.memory_bytes) == (10.0, 1 << 30)


@pytest.mark.parametrize(
    ("result", "status", "run_status", "return_code"),
    [
        (error("NameError\n"), "Failed", "Finished", 1),
        (error("", exit_code=3), "Failed", "Finished", 3),
        (signaled(11), "Failed", "Finished", -11),
        (timeout(), "Failed", "TimeLimitExceeded", None),
    ],
)
async def test_a_failed_run_says_how(
    serve: Any, result: ExecResult, status: str, run_status: str, return_code: int | None
) -> None:
    _, answer = await run(serve, result)
    assert answer["status"] == status
    assert (answer["run_result"]["status"], answer["run_result"]["return_code"]) == (run_status, return_code)


async def test_a_failure_of_ours_is_a_sandbox_error(serve: Any) -> None:
    """Those clients retry 504 and nothing else."""
    for retryable, status in ((True, 504), (False, 200)):
        found, answer = await run(serve, SandboxError("no zygote", kind="zygote_died", retryable=retryable))
        assert (found, answer["status"], answer["message"]) == (status, "SandboxError", "no zygote")
        assert answer["run_result"] is None


async def test_cpp_is_compiled_and_run(serve: Any) -> None:
    _, answer = await run(serve, ok("1"), language="cpp")
    assert answer["compile_result"]["return_code"] == 0
    assert (answer["run_result"]["stdout"], answer["status"]) == ("1", "Success")
    broken = dataclasses.replace(error("a.cpp:1: error\n"), wall_s=0.0)
    _, answer = await run(serve, broken, language="cpp")
    assert (answer["compile_result"]["stderr"], answer["run_result"]) == ("a.cpp:1: error\n", None)
    assert (answer["compile_result"]["return_code"], answer["status"]) == (1, "Failed")


async def test_another_language_is_refused_in_the_schema(serve: Any) -> None:
    for language in ("go", "bash", "lean", "python_gpu"):
        status, answer = await run(serve, ok(), language=language)
        assert (status, list(answer), answer["status"]) == (200, CODE_FIELDS, "SandboxError")
        assert language in answer["message"]


@pytest.mark.parametrize(
    ("fields", "kind", "loc"),
    [
        ({"language": "cobol"}, "literal_error", ["language"]),
        ({"code": 5}, "string_type", ["code"]),
        ({"code": "\ud800"}, "value_error", ["code"]),
        ({"stdin": 5}, "string_type", ["stdin"]),
        ({"run_timeout": "soon"}, "float_type", ["run_timeout"]),
        ({"run_timeout": 0}, "greater_than_equal", ["run_timeout"]),
        ({"run_timeout": 1e9}, "less_than_equal", ["run_timeout"]),
        ({"memory_limit_MB": 1.5}, "int_type", ["memory_limit_MB"]),
        ({"memory_limit_MB": True}, "int_type", ["memory_limit_MB"]),
        ({"files": []}, "dict_type", ["files"]),
        ({"files": {"a": 1}}, "string_type", ["files", "a"]),
        ({"files": {"../a": ""}}, "value_error", ["files", "../a"]),
        ({"files": {"/etc/a": ""}}, "value_error", ["files", "/etc/a"]),
        ({"files": {"a": "%%%"}}, "value_error", ["files", "a"]),
        ({"files": {"a": "", "a/b": ""}}, "value_error", ["files", "a"]),
        ({"files": {"a/./b": ""}}, "value_error", ["files", "a/./b"]),
        ({"fetch_files": ["../../etc/passwd"]}, "value_error", ["fetch_files"]),
        ({"fetch_files": [1]}, "string_type", ["fetch_files", 0]),
    ],
)
async def test_mistakes_name_the_field(serve: Any, fields: Any, kind: str, loc: list[Any]) -> None:
    status, answer = await run(serve, ok(), **fields)
    assert status == 422
    assert [(detail["type"], detail["loc"]) for detail in answer["detail"]] == [(kind, ["body", *loc])]


async def test_a_service_that_allows_little_time_gives_that_by_default(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake, service_limits=ServiceLimits(flavours=("stdlib",), max_wall_s=2.0)) as service:
        assert (await service.post("/run_code", {"code": "x", "language": "python"}))[0] == 200
        assert (await service.post("/run_jupyter", {"cells": ["x"]}))[0] == 200
        status, _ = await service.post("/run_jupyter", {"cells": ["x"], "total_timeout": 45})
    assert status == 422
    assert [request.limits.wall_s <= 2.0 for request in fake.requests] == [True, True]


@pytest.mark.parametrize("path", ["/run_code", "/run_jupyter"])
async def test_files_above_the_limit_are_refused_by_a_message_that_names_it(serve: Any, path: str) -> None:
    half = base64.b64encode(b"x" * (MAX_GIVEN_BYTES // 2)).decode()
    body = {"code": "x", "language": "python", "cells": ["x"], "files": {"a": half, "b": half}}
    fake = FakeSandbox({}, otherwise=ok())
    async with serve(fake) as service:
        assert (await service.post(path, body))[0] == 200
        status, answer = await service.post(path, {**body, "files": {"a": half, "b": half, "c": "eA=="}})
    (detail,) = answer["detail"]
    assert (status, detail["type"], detail["input"]) == (422, "too_long", None)
    assert detail["msg"] == "the files have 33554433 bytes together; at most 33554432 bytes are taken"
    given = fake.requests[0]
    assert {name: len(content) for name, content in given.files.items()} == dict.fromkeys("ab", 16 << 20)
    assert len(given.code) < 100, "the files are no part of the program's text"


async def test_what_is_missing_is_named(serve: Any) -> None:
    async with serve(FakeSandbox({})) as service:
        for path in ("/run_code", "/run_jupyter"):
            for body in ({}, [], {"code": "x"}, {"language": "python"}):
                status, answer = await service.post(path, body)
                assert status == 422 and answer["detail"][0]["type"] in ("missing", "model_attributes_type")


async def test_a_notebook_shares_state_and_goes_on_after_an_error(serve: Any) -> None:
    trace = (
        'warned\nTraceback (most recent call last):\n  File "<cell>", line 1, in <module>\n'
        "    assert False\nAssertionError: no: really\n"
    )
    fake = FakeSandbox({"a = 1": ok(), "a": ok(value="1"), "fail": error(trace), "print(a)": ok("1\n", stderr="w")})
    async with serve(fake) as service:
        status, answer = await service.post("/run_jupyter", {"cells": ["a = 1", "a", "fail", "print(a)"]})
    assert (status, list(answer), answer["status"]) == (200, JUPYTER_FIELDS, "Success")
    assert (list(answer["driver"]), answer["driver"]["status"]) == (COMMAND_FIELDS, "Finished")
    first, second, third, fourth = answer["cells"]
    assert first == {"stdout": "", "stderr": "", "display": [], "error": []}
    assert second["display"] == [{"text/plain": "1"}]
    assert (third["stderr"], third["error"][0]["ename"]) == ("warned\n", "AssertionError")
    assert third["error"][0]["evalue"] == "no: really"
    assert (fourth["stdout"], fourth["stderr"], fourth["error"]) == ("1\n", "w", [])
    (session,) = fake.sessions
    assert (session.cells, session.lost) == (["a = 1", "a", "fail", "print(a)"], "closed")


async def test_a_notebook_that_times_out_has_failed(serve: Any) -> None:
    fake = FakeSandbox({"a": ok("1"), "hang": timeout(), "b": ok("2")})
    async with serve(fake) as service:
        _, answer = await service.post("/run_jupyter", {"cells": ["a", "hang", "b"], "cell_timeout": 2})
    assert (answer["status"], answer["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert [cell["stdout"] for cell in answer["cells"]] == ["1"]
    assert fake.requests[0].limits.wall_s == 2.0


async def test_a_notebook_whose_interpreter_is_gone_has_failed(serve: Any) -> None:
    fake = FakeSandbox({"exit": error("", exit_code=3), "b": ok("2")})
    async with serve(fake) as service:
        _, answer = await service.post("/run_jupyter", {"cells": ["exit", "b"]})
    assert (answer["status"], answer["driver"]["status"]) == ("Failed", "Error")
    assert "died" in answer["driver"]["stderr"]


async def test_a_sandbox_without_sessions_says_so(serve: Any) -> None:
    class Stateless(FakeSandbox):
        async def open_session(self, **_: Any) -> Any:
            raise SandboxError("no sessions here", kind="no_sessions", retryable=False)

    async with serve(Stateless({})) as service:
        status, answer = await service.post("/run_jupyter", {"cells": ["a"]})
        assert (status, answer["status"], answer["message"]) == (200, "SandboxError", "no sessions here")
        assert (await service.post("/v1/sessions", {}))[0] == 501


async def test_files_are_given_and_fetched_by_the_places_of_the_program(serve: Any) -> None:
    """As in the original, a file that is not there is left out of the answer."""
    fake = FakeSandbox({}, otherwise=dataclasses.replace(ok(), files={"/mnt/data/b": b"y"}))
    names = ["/mnt/data/b", "/tmp/none", "/etc/passwd"]
    async with serve(fake) as service:
        for path, more in (("/run_code", {"code": "x", "language": "python"}), ("/run_jupyter", {"cells": ["x"]})):
            body = {**more, "files": {"/mnt/data/a": "eA=="}, "fetch_files": names}
            status, answer = await service.post(path, body)
            assert (status, answer["files"]) == (200, {"/mnt/data/b": "eQ=="})
            assert fake.requests[-1].fetch == tuple(names)


async def test_what_fits_into_one_answer_comes_back(serve: Any) -> None:
    """The sandbox gives what was asked for, by the names that were asked for; nothing that the program wrote
    to the value's descriptor is looked at."""
    files = {"large": b"x" * MAX_JSON_FILES_BYTES, "a.txt": b"y"}
    result = dataclasses.replace(ok(value='{"../../.ssh/keys": "eA=="}'), files=files)
    fake = FakeSandbox({}, otherwise=result)
    async with serve(fake) as service:
        body = {"code": "x", "language": "python", "fetch_files": ["large", "a.txt"]}
        _, answer = await service.post("/run_code", body)
    assert answer["files"] == {"a.txt": "eQ=="}
    assert fake.requests[0].fetch == ("large", "a.txt")


CLIENT = json.loads((Path(__file__).parent / "recordings" / "sandbox_fusion_client.json").read_text())


async def test_the_clients_own_package_is_understood(serve: Any) -> None:
    """As recorded (record_sandbox_fusion_client.py). The client retries other statuses than 200, and raises
    for SandboxError."""
    fake = FakeSandbox(lambda request: dataclasses.replace(ok("1\n"), files=dict.fromkeys(request.fetch, b"x")))
    async with serve(fake) as service:
        for sent in CLIENT["requests"]:
            body = sent["body"]
            status, answer = await service.post(sent["path"], body)
            fails = body.get("language") == "java"
            assert (status, answer["status"]) == (200, "SandboxError" if fails else "Success"), answer
            assert list(answer["files"]) == ([] if fails else body["fetch_files"])
            assert list(fake.requests[-1].files) in ([], list(body["files"]))


async def test_a_notebook_that_lost_its_interpreter_through_us_is_a_failure_of_ours(serve: Any) -> None:
    """It can run again, because nothing of it is left."""
    reasons = ("evicted", "supervisor_died", "closed")
    fake = FakeSandbox({"a": ok("1"), **{reason: SessionLost("gone", reason=reason) for reason in reasons}})
    async with serve(fake) as service:
        for reason in reasons:
            status, answer = await service.post("/run_jupyter", {"cells": ["a", reason, "a"]})
            assert (status, answer["status"], answer["cells"]) == (504, "SandboxError", [])
        assert service.service.metrics.in_flight == 0


async def test_what_a_notebook_waits_for_places_is_not_its_time(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or on a busy service its cells would not run."""
    loop = asyncio.get_running_loop()
    waited_s, time_s = 0.0, loop.time

    def wait_and_answer(request: ExecRequest) -> ExecResult:
        nonlocal waited_s
        waited_s += 5.0
        return dataclasses.replace(ok(request.code), wall_s=0.4)

    monkeypatch.setattr(loop, "time", lambda: time_s() + waited_s)
    async with serve(FakeSandbox(wait_and_answer)) as service:
        asked = {"cells": ["a", "b", "c", "d"], "total_timeout": 1}
        _, answer = await service.post("/run_jupyter", asked)
    assert [cell["stdout"] for cell in answer["cells"]] == ["a", "b", "c"]
    assert answer["driver"]["status"] == "TimeLimitExceeded"


async def test_a_notebooks_traceback_is_as_long_as_one_can_read(serve: Any) -> None:
    """A megabyte of short lines would become twenty of texts, for each of a thousand cells."""
    trace = "Traceback (most recent call last):\n" + "ab\n" * 300_000
    cells = {"lines": error(f"w\n{trace}ValueError: no"), "name": error(trace + "a" * 500_000)}
    async with serve(FakeSandbox(cells)) as service:
        _, answer = await service.post("/run_jupyter", {"cells": list(cells)})
    faults = [cell["error"][0] for cell in answer["cells"]]
    assert [len(fault["traceback"]) <= 1000 for fault in faults] == [True, True]
    assert sum(map(len, faults[1]["traceback"])) <= 1 << 16
    assert (faults[0]["ename"], faults[0]["evalue"], faults[0]["traceback"][-1]) == (
        *("ValueError", "no"),
        "ValueError: no",
    )
    assert answer["cells"][0]["stderr"] == "w\n" and faults[1]["ename"] == "error"


@pytest.mark.parametrize(
    "result",
    [
        ok(value="x" * 300_000),
        error("Traceback (most recent call last):\nValueError: " + "x" * 300_000),
        dataclasses.replace(ok(), displays=(Display("text/html", b"x" * 300_000),)),
    ],
    ids=["value", "error", "display"],
)
async def test_a_long_notebook_is_written_beside_the_loop(
    serve: Any, monkeypatch: pytest.MonkeyPatch, result: ExecResult
) -> None:
    sizes = []

    async def watched(answer: Any, num_chars: int) -> bytes:
        sizes.append(num_chars)
        return await encode_json(answer, num_chars)

    monkeypatch.setattr(responses, "encode_json", watched)
    async with serve(FakeSandbox({}, otherwise=result)) as service:
        assert (await service.post("/run_jupyter", {"cells": ["x"]}))[0] == 200
    assert sizes[0] >= 300_000


async def test_a_program_that_is_too_long_with_its_end_is_refused(serve: Any) -> None:
    code = "#" + "x" * (MAX_TEXT_BYTES - 1)
    async with serve(FakeSandbox({}, otherwise=ok())) as service:
        status, answer = await service.post("/run_code", {"code": code, "language": "python"})
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", "code"])


def test_a_notebooks_flavour_is_chosen_by_its_beginning() -> None:
    """Cells may be 64 MiB, and four times that as one text."""
    assert len(sandbox_fusion.scanned_source(["x" * 100_000] * 600)) <= MAX_SCANNED
    assert sandbox_fusion.scanned_source(["a", "b"]) == "a\nb"
