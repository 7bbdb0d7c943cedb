"""The service over a real pool: real programs in each dialect."""

import asyncio
import base64
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

import rocstar.sandbox
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.service.dialects.code_judge import JudgeOptions
from rocstar.sandbox.service.validation import ServiceLimits

from ... import needs
from ...patience import PATIENCE_S
from .conftest import request_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECORDED = json.loads((Path(__file__).parent / "recordings" / "code_judge.json").read_text(encoding="utf-8"))
PROGRAMS = [
    case
    for case in RECORDED["cases"]
    if case["status"] == 200 and case["body"] and '"cpp"' not in case["body"] and "surrogate" not in case["name"]
]
RACY = ("timeout /", "timeout_long_output /")
"""There the original's alarm and its CPU limit strike together: its last line is sometimes missing."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(serve_module: Any) -> AsyncIterator[Any]:
    async with (
        SandboxPool(("stdlib",)) as pool,
        serve_module(
            pool, service_limits=ServiceLimits(flavours=("stdlib",)), judge=JudgeOptions(execution_s=1)
        ) as running,
    ):
        yield running


def comparable(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """Without what differs from run to run; of standard error its last line, which names the error."""
    fields = {key: answer[key] for key in ("success", "run_success", "reason")}
    if "stdout" in answer and not name.startswith(RACY):
        fields["stdout"] = answer["stdout"]
    if answer.get("stderr"):
        last = answer["stderr"].rstrip().rpartition("\n")[2]
        fields["stderr"] = last.replace("source code string", "source code")  # a file there, a string here
    return fields


def in_words_of_this_python(recorded: str) -> str:
    """A recorded last line of standard error. NUL bytes in a program are a SyntaxError only since 3.11.4."""
    try:
        compile("\0", "", "exec")
    except (SyntaxError, ValueError) as now:
        words = f"{type(now).__name__}: {now}".replace("source code string", "source code")
    return words if recorded == "SyntaxError: source code cannot contain null bytes" else recorded


async def test_programs_end_as_under_code_judge(service: Any) -> None:
    answers = await asyncio.gather(*(service.post(case["path"], data=case["body"].encode()) for case in PROGRAMS))
    assert len(PROGRAMS) > 50
    for case, (status, answer) in zip(PROGRAMS, answers, strict=True):
        theirs = case["answer"]
        assert status == 200
        assert list(answer) == list(theirs), case["name"]
        pairs = zip(answer["results"], theirs["results"], strict=True) if "results" in theirs else [(answer, theirs)]
        for ours, recorded in pairs:
            expected = comparable(recorded, case["name"])
            if "stderr" in expected:
                expected["stderr"] = in_words_of_this_python(expected["stderr"])
            assert comparable(ours, case["name"]) == expected, case["name"]


async def test_the_whole_output_is_judged_and_its_head_is_shown(service: Any) -> None:
    body = {"type": "python", "solution": "print('y' * 3_000_000)", "expected_output": "y" * 3_000_000}
    _, answer = await service.post("/run", body)
    assert (answer["success"], answer["stdout"]) == (True, "y" * 1000)


async def test_a_batch_is_in_order_and_independent(service: Any) -> None:
    codes = [f"print({i})" for i in range(40)] + ["1/0", "import os; os._exit(7)", "while True: pass"]
    requests = [{"code": code, "limits": {"wall_s": 0.5}} for code in codes]
    status, answer = await service.post("/v1/batch", {"requests": requests})
    assert status == 200
    assert [result["stdout"] for result in answer["results"][:40]] == [f"{i}\n" for i in range(40)]
    assert [result["status"] for result in answer["results"][40:]] == ["error", "error", "timeout"]
    assert answer["results"][41]["exit_code"] == 7


async def test_streamed_results_do_not_wait_for_the_slowest(service: Any) -> None:
    requests = [{"code": "import time; time.sleep(900)", "limits": {"wall_s": 900.0}}, {"code": "print(1)"}]
    body = {"requests": requests, "stream": True}
    async with asyncio.timeout(PATIENCE_S), service.http.post("/v1/batch", json=body) as answer:
        line = json.loads(await answer.content.readline())
    assert (line["index"], line["stdout"]) == (1, "1\n")


async def test_a_client_that_goes_away_frees_the_sandbox(service: Any, until: Any) -> None:
    endless = {"code": "while True: pass", "limits": {"wall_s": 600.0, "cpu_s": 600}}
    _, writer = await service.send(request_bytes("/v1/batch", {"requests": [endless] * 30}))
    await until(lambda: service.service.metrics.in_flight == 30)
    writer.close()
    await asyncio.wait_for(service.service.admission.drained(), PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):  # every place is free again
        status, answer = await service.post("/v1/batch", {"requests": [{"code": "print(1)"}] * 30})
    assert (status, {result["stdout"] for result in answer["results"]}) == (200, {"1\n"})


async def test_a_session_keeps_its_state_and_branches(service: Any) -> None:
    _, opened = await service.post("/v1/sessions", {})
    path = f"/v1/sessions/{opened['id']}"

    async def value(path: str, code: str) -> Any:
        status, result = await service.post(path + "/run", {"code": code})
        assert status == 200, result
        return result["value"]

    assert await value(path, "x = [1]; len(x)") == "1"
    assert await value(path, "1/0") is None
    status, branch = await service.post(path + "/branch")
    assert status == 201
    assert await value(path, "x.append(2); x") == "[1, 2]"
    assert await value(f"/v1/sessions/{branch['id']}", "x.append(3); x") == "[1, 3]"
    status, result = await service.post(path + "/run", {"code": "while True: pass", "wall_s": 0.2})
    assert (status, result["status"]) == (200, "timeout")
    status, result = await service.post(path + "/run", {"code": "import os; os._exit(3)"})
    # Whether a cell that times out takes its session along is the pool's affair; one that exits does.
    assert (status, result.get("exit_code", 3)) in ((200, 3), (410, 3))
    status, answer = await service.post(path + "/run", {"code": "x"})
    assert (status, answer["error"]["reason"]) == (410, "died")
    assert await value(f"/v1/sessions/{branch['id']}", "x") == "[1, 3]"


async def test_a_client_that_restarts_finds_its_sessions_and_their_files(service: Any) -> None:
    ids = [(await service.post("/v1/sessions", {}, headers={"Rocstar-Run": "one"}))[1]["id"] for _ in "ab"]
    mine, path = {"Rocstar-Run": "one"}, f"/v1/sessions/{ids[0]}"
    code = "import os; os.mkdir('d'); open('d/b', 'w').write('xyz'); os.symlink('d/b', 'link'); os.chdir('d')"
    await service.post(path + "/run", {"code": code, "displays": True}, headers=mine)
    async with service.http.put(path + "/files/a.txt", data=b"0123456789", headers=mine) as answer:
        assert answer.status == 204
    found = {"files": [{"name": "a.txt", "bytes": 10}, {"name": "d/b", "bytes": 3}]}
    assert await service.get(path + "/files", headers=mine) == (200, found)
    _, result = await service.post(path + "/run", {"code": "sorted(vars())"}, headers=mine)
    assert "home" not in result["value"] and "stat" not in result["value"]
    status, listed = await service.get("/v1/sessions", headers=mine)
    assert (status, [one["id"] for one in listed["sessions"]]) == (200, ids[::-1])  # the last used last
    assert all(not one["busy"] and 0 < one["expires_s"] <= 1800 for one in listed["sessions"])
    async with service.http.delete(path, headers=mine) as answer:
        assert answer.status == 204
    _, listed = await service.get("/v1/sessions", headers=mine)
    assert [one["id"] for one in listed["sessions"]] == ids[1:]
    other = {"Rocstar-Run": "two"}
    assert await service.get("/v1/sessions", headers=other) == (200, {"sessions": []})
    assert (await service.get(f"/v1/sessions/{ids[1]}/files", headers=other))[0] == 410


async def test_files_whose_list_is_cut_are_an_error(service: Any) -> None:
    _, opened = await service.post("/v1/sessions", {"limits": {"output_bytes": 64}})
    path = f"/v1/sessions/{opened['id']}"
    await service.post(path + "/run", {"code": "for i in range(40): open(f'a-file-{i}', 'w').close()"})
    status, answer = await service.get(path + "/files")
    assert (status, answer["error"]["kind"]) == (409, "no_list")
    assert (await service.post(path + "/run", {"code": "i"}))[1]["value"] == "39"


async def test_sandbox_fusion_runs_programs_and_notebooks(service: Any) -> None:
    _, answer = await service.post("/run_code", {"code": "print(input())", "language": "python", "stdin": "9"})
    assert (answer["status"], answer["run_result"]["stdout"]) == ("Success", "9\n")
    _, answer = await service.post("/run_code", {"code": "6 * 7", "language": "python"})
    assert answer["run_result"]["stdout"] == ""
    body = {"code": "while True: pass", "language": "python", "run_timeout": 0.3}
    _, answer = await service.post("/run_code", body)
    assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    cells = ["a = 'hello'", "a", "import sys; n = sys.stderr.write('oh\\n')", "assert False", "print(a)"]
    _, answer = await service.post("/run_jupyter", {"cells": cells})
    assert answer["status"] == "Success"
    assert answer["cells"][1]["display"] == [{"text/plain": "'hello'"}]
    assert answer["cells"][2]["stderr"] == "oh\n"
    assert answer["cells"][3]["error"][0]["ename"] == "AssertionError"
    assert answer["cells"][4]["stdout"] == "hello\n"


async def test_files_of_sandbox_fusion_go_in_and_out(service: Any) -> None:
    """A traceback shows nothing of a large file."""
    _, probe = await service.post("/v1/run", {"code": "open('a', 'w').close()"})
    if probe["status"] != "ok":
        needs.LANDLOCK.skip()  # without it programs have no scratch directory
    files = {"in/a.txt": "aGVsbG8=", "large": base64.b64encode(b"x" * (9 << 20)).decode()}
    code = """
import os
print(open('in/a.txt').read(), os.path.getsize('large'))
with open('é.bin', 'wb') as file:
    file.write(bytes(range(256)))
1 / 0"""
    body = {"code": code, "language": "python", "files": files, "fetch_files": ["é.bin", "nowhere"]}
    _, answer = await service.post("/run_code", body)
    result = answer["run_result"]
    assert (result["stdout"], result["return_code"]) == (f"hello {9 << 20}\n", 1)
    assert len(result["stderr"]) < 300 and "ZeroDivisionError" in result["stderr"], result["stderr"][:1000]
    assert list(answer["files"]) == ["é.bin"]
    cells = ["import os; print(open('in/a.txt').read())", "os.path.getsize('large')"]
    body = {"cells": cells, "files": files, "fetch_files": ["in/a.txt"]}
    _, answer = await service.post("/run_jupyter", body)
    assert (answer["cells"][0]["stdout"], answer["files"]) == ("hello\n", {"in/a.txt": "aGVsbG8="})
    assert answer["cells"][1]["display"] == [{"text/plain": str(9 << 20)}]


async def test_the_pools_numbers_are_in_the_metrics_and_it_is_ready(service: Any) -> None:
    for name in ("restarts_total", "evictions_total", "pool_sessions"):
        assert await service.metric(name) is not None
    assert await service.get("/readyz") == (200, {"ready": True})


async def test_calls_outlive_the_supervisor_and_sessions_say_that_they_did_not(serve_module: Any, until: Any) -> None:
    async with (
        SandboxPool(("stdlib",)) as pool,
        serve_module(pool, service_limits=ServiceLimits(flavours=("stdlib",))) as service,
    ):
        _, opened = await service.post("/v1/sessions", {})
        requests = [{"code": f"import time; time.sleep(0.3); print({i})"} for i in range(6)]
        batch = asyncio.create_task(service.post("/v1/batch", {"requests": requests}))
        await until(lambda: service.service.metrics.in_flight == 6)
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        status, answer = await batch
        assert (status, [result["stdout"] for result in answer["results"]]) == (200, [f"{i}\n" for i in range(6)])
        status, answer = await service.post(f"/v1/sessions/{opened['id']}/run", {"code": "1"})
        assert (status, answer["error"]["reason"]) == (410, "supervisor_died")
        assert await service.metric("restarts_total") == 1


MAX_FUNCTIONS = 156
"""Of Python, called or gone on with for a cell, aiohttp's and ours: 153 with the door of all servers."""


async def test_a_cell_takes_no_more_calls_of_functions_than_it_did(service: Any) -> None:
    """Counted, not timed: a route that is looked for with each request costs twenty more, an answer whose
    headers are collected one by one eleven."""
    folders = tuple(str(Path(package.__path__[0])) for package in (aiohttp, rocstar.sandbox))
    called: Counter[str] = Counter()

    def saw(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (path := frame.f_code.co_filename).startswith(folders):
            called[f"{path}:{frame.f_code.co_qualname}"] += 1

    _, opened = await service.post("/v1/sessions", {})
    cell_request = request_bytes(f"/v1/sessions/{opened['id']}/run", {"code": "print(6 * 7)"})
    reader, writer = await service.send(b"")

    async def cell() -> bytes:
        writer.write(cell_request)
        answered = await reader.readuntil(b"\r\n\r\n")
        length = int(answered.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return await reader.readexactly(length)

    cells = 20
    try:
        await cell()  # what happens only once
        sys.setprofile(saw)
        answers = [await cell() for _ in range(cells)]
    finally:
        sys.setprofile(None)
        writer.close()
    assert all(b'"stdout":"42\\n"' in answer for answer in answers)
    assert called.total() / cells <= MAX_FUNCTIONS, called.most_common(200)
