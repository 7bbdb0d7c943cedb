"""code-judge's dialect against recordings of the original, and what the recordings cannot show."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox.service.dialects.code_judge import EARLY_S, JudgeOptions
from rocstar.sandbox.service.validation import SCRIPT_END
from rocstar.sandbox.types import ExecRequest, SandboxError
from tests.fakes.sandbox import FakeSandbox, error, ok, output_limit, signaled, timeout

RECORDED = json.loads((Path(__file__).parent / "recordings" / "code_judge.json").read_text(encoding="utf-8"))
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in RECORDED["cases"]}

ALWAYS = ok("1\n")
"""What the fake answers: these cases are about the shape of requests, not about programs."""

REFUSED = [name for name, case in CASES.items() if case["status"] != 200 and case["body"] is not None]


async def test_mistakes_are_answered_as_the_original_does(serve: Any) -> None:
    nested = '{"type":"python","solution":' + "[" * 100_000 + "]" * 100_000 + "}"  # too long for the recording
    async with serve(FakeSandbox({}, otherwise=ALWAYS)) as service:
        for name in (*REFUSED, "nested", "wrong_method", "no_such_path"):
            case = CASES[name]
            body = (nested if name == "nested" else case["body"] or "").encode("utf-8", "surrogateescape")
            async with service.http.request(case["method"], case["path"], data=body) as answer:
                assert (answer.status, await answer.json()) == (case["status"], case["answer"]), name


async def test_ping_and_status_have_the_recorded_shape(serve: Any) -> None:
    async with serve(FakeSandbox({}), num_workers=2) as service:
        assert await service.get("/ping") == (200, CASES["ping"]["answer"])
        assert await service.get("/status") == (200, CASES["status"]["answer"])


async def test_status_counts_the_workers_of_a_sandbox_that_says_so(serve: Any) -> None:
    class Fleet(FakeSandbox):
        capacity = 7

    fleet = Fleet({})
    async with serve(fleet, num_workers=2) as service:
        assert await service.get("/status") == (200, {"queue": 0, "num_workers": 7})
        fleet.capacity = 0  # all of them have gone
        assert await service.get("/status") == (200, {"queue": 0, "num_workers": 0})


@pytest.mark.parametrize("route", ["/run/batch", "/run/long-batch", "/judge/batch", "/judge/long-batch"])
async def test_batches_have_the_recorded_fields_and_order(serve: Any, route: str) -> None:
    case = CASES[f"mixed {route}"]
    script = {"print('a')": ok("a\n"), "print(input())": ok("9\n"), "x=1/0": error("ZeroDivisionError\n")}
    fake = FakeSandbox({code + SCRIPT_END: result for code, result in script.items()})
    async with serve(fake) as service:
        status, answer = await service.post(route, data=case["body"].encode())
    assert (status, answer["sub_id"]) == (200, "whole")
    for ours, theirs in zip(answer["results"], case["answer"]["results"], strict=True):
        assert list(ours) == list(theirs)
        for name in ("success", "run_success", "reason", "stdout"):
            assert ours.get(name) == theirs.get(name)


def submission(code: str = "x", **fields: Any) -> dict[str, Any]:
    return {"type": "python", "solution": code, **fields}


async def judged(serve: Any, result: Any, body: dict[str, Any], path: str = "/run", **options: Any) -> dict[str, Any]:
    fake = FakeSandbox({}, otherwise=result)
    async with serve(fake, judge=JudgeOptions(**options)) as service:
        status, answer = await service.post(path, body)
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


async def test_a_timeout_keeps_what_was_printed_and_ends_as_the_original(serve: Any) -> None:
    answer = await judged(serve, dataclasses.replace(timeout(), stdout="early\n"), submission())
    assert answer["stdout"] == "early\nSuicide from timeout.\n"
    assert (answer["reason"], answer["run_success"], answer["success"]) == ("worker_timeout", False, False)


async def test_streams_are_cut_at_their_heads(serve: Any) -> None:
    late = dataclasses.replace(timeout(), stdout="x" * 2000)
    assert (await judged(serve, late, submission()))["stdout"] == "x" * 1000
    long = ok("y" * 5000, stderr="e" * 5000)
    answer = await judged(serve, long, submission(expected_output="y" * 5000))
    assert (answer["stdout"], answer["stderr"], answer["success"]) == ("y" * 1000, "e" * 1000, True)
    assert (await judged(serve, long, submission(), shown_chars=3))["stdout"] == "yyy"


async def test_the_value_of_a_trailing_expression_is_not_shown(serve: Any) -> None:
    assert (await judged(serve, ok("", value="42"), submission("6 * 7")))["stdout"] == ""


@pytest.mark.parametrize(
    ("result", "stdout"), [(error("late\n"), ""), (ok("done\n"), "done\nSuicide from timeout.\n")]
)
async def test_a_program_that_ends_after_the_limit_is_a_timeout(serve: Any, result: Any, stdout: str) -> None:
    """The kill and the program's own end can meet; sleep(10) under a limit of 10 s must not depend on it."""
    late = dataclasses.replace(result, wall_s=10.002)
    answer = await judged(serve, late, submission(expected_output="done"))
    assert (answer["reason"], answer["run_success"], answer["success"]) == ("worker_timeout", False, False)
    assert answer["stdout"] == stdout


async def test_other_endings_have_no_reason(serve: Any) -> None:
    for result in (signaled(), output_limit("x"), error("", exit_code=3)):
        answer = await judged(serve, result, submission(expected_output=result.stdout))
        assert (answer["run_success"], answer["success"], answer["reason"]) == (False, False, "")


@pytest.mark.parametrize(
    ("failure", "reason", "cost"),
    [
        (SandboxError("late", kind="deadline", retryable=True), "queue_timeout", 19.0),
        (SandboxError("died", kind="zygote_died", retryable=True), "queue_timeout", 0.0),
        (SandboxError("none", kind="unknown_flavour", retryable=False), "internal_error", 0.0),
    ],
)
@pytest.mark.parametrize("path", ["/run", "/judge", "/run/batch", "/judge/long-batch"])
async def test_a_failure_of_ours_has_a_reason_and_no_output(
    serve: Any, path: str, failure: SandboxError, reason: str, cost: float
) -> None:
    single = path.count("/") == 1
    answer = await judged(serve, failure, submission() if single else {"submissions": [submission()]}, path)
    result = answer if single else answer["results"][0]
    assert (result["reason"], result["success"], result["run_success"]) == (reason, False, False)
    assert result["cost"] == (3615.0 if path.endswith("long-batch") and cost else cost)
    assert result.get("stdout") is None and result.get("stderr") is None


async def test_every_submission_gets_the_environments_limits(serve: Any) -> None:
    fake = FakeSandbox({}, otherwise=ALWAYS)
    options = JudgeOptions.from_environment({"MAX_EXECUTION_TIME": "4", "MAX_MEMORY": "512"})
    async with serve(fake, judge=options) as service:
        await service.post("/run", submission("import sympy", input="in"))
        await service.post("/run", {"type": "cpp", "solution": "int main(){}"})
    python, cpp = fake.requests
    assert (python.code, python.stdin, python.flavour) == ("import sympy" + SCRIPT_END, "in", "numeric")
    assert (cpp.code, cpp.flavour) == ("int main(){}", "cpp")
    for request in fake.requests:
        assert (request.limits.wall_s, request.limits.memory_bytes) == (4 - EARLY_S, 512 << 20)


async def test_a_compile_error_is_its_text_at_no_cost(serve: Any) -> None:
    result = dataclasses.replace(error("source.cpp:1: error: xx\n"), wall_s=0.0)
    answer = await judged(serve, result, {"type": "cpp", "solution": "xx"})
    recorded = CASES["cpp_compile_error /run"]["answer"]
    for name in ("success", "run_success", "cost", "stdout", "reason"):
        assert answer[name] == recorded[name]
    assert "error" in answer["stderr"]


async def test_half_a_surrogate_pair_is_refused_and_named_and_spares_the_others(serve: Any) -> None:
    """The original answers internal_error for one alone."""
    fake = FakeSandbox({}, otherwise=ALWAYS)
    items = [submission("a"), submission("'\ud800'"), submission("b", input="\udc00"), submission("c")]
    async with serve(fake) as service:
        for name, field in (("surrogate", "solution"), ("surrogate_input", "input")):
            status, answer = await service.post("/run", data=CASES[name]["body"].encode())
            assert (status, answer["detail"][0]["loc"]) == (422, ["body", field])
        status, answer = await service.post("/run/long-batch", {"submissions": items})
    assert status == 200
    assert [result["reason"] for result in answer["results"]] == ["", "invalid_input", "invalid_input", ""]
    assert "surrogate" in answer["results"][1]["stderr"]
    assert [request.code for request in fake.requests] == ["c" + SCRIPT_END, "a" + SCRIPT_END]


@pytest.mark.parametrize("path", ["/run", "/judge/batch"])
async def test_a_clients_own_name_comes_back_even_if_it_is_no_text(serve: Any, path: str) -> None:
    item = submission(sub_id="\ud800")
    body = item if path == "/run" else {"submissions": [item], "sub_id": "\udfff"}
    async with serve(FakeSandbox({}, otherwise=ALWAYS)) as service:
        status, answer = await service.post(path, body)
    (result,) = answer.get("results", [answer])
    assert (status, result["sub_id"]) == (200, "\ud800")


async def test_a_deadline_goes_with_every_call(serve: Any) -> None:
    """/run and /batch wait MAX_QUEUE_WAIT_TIME, /long-batch its hour: then the answer is queue_timeout."""
    seen: list[float] = []

    class Watching(FakeSandbox):
        async def run(self, request: ExecRequest, *, deadline: float | None = None) -> Any:
            assert deadline is not None
            seen.append(deadline)
            return ALWAYS

    async with serve(Watching({}), judge=JudgeOptions(execution_s=2, queue_s=1)) as service:
        start_s = asyncio.get_running_loop().time()
        await service.post("/run", submission())
        await service.post("/run/batch", {"submissions": [submission()]})
        await service.post("/run/long-batch", {"submissions": [submission()]})
    waits = [deadline - start_s for deadline in seen]
    assert [round(wait / 10) for wait in waits] == [1, 1, 361]


def test_options_come_from_the_originals_variables() -> None:
    given = {"MAX_EXECUTION_TIME": "4", "MAX_MEMORY": "100", "MAX_STDOUT_ERROR_LENGTH": "7"}
    given |= {"MAX_QUEUE_WORK_LIFE_TIME": "6", "LONG_BATCH_MAX_QUEUE_WAIT_TIME": "5000", "MAX_WORKERS": "3"}
    options = JudgeOptions.from_environment(given)
    assert (options.execution_s, options.memory_bytes, options.shown_chars) == (4, 100 << 20, 7)
    assert (options.wait_s, options.long_wait_s, options.workers) == (4 + 5 + 6, 5000, 3)
    assert JudgeOptions.from_environment({}) == JudgeOptions(long_wait_s=3615)
    for name, value in (
        ("MAX_EXECUTION_TIME", "soon"),
        ("MAX_EXECUTION_TIME", "0"),
        ("MAX_MEMORY", "-1"),
        ("LONG_BATCH_MAX_QUEUE_WAIT_TIME", "3600"),
        ("MAX_WORKERS", "1.5"),
    ):
        with pytest.raises(ValueError, match=f"{name} is"):
            JudgeOptions.from_environment({name: value})
