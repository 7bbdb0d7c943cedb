"""The verl-tool dialect: recorded requests of its clients (record_verl_tool.py), and their answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from rocstar.sandbox._native import MOST_SHELL_BYTES
from rocstar.sandbox.http.packed_items import PACKED_FROM, PackedItems
from rocstar.sandbox.pool.pool import check_bash
from rocstar.sandbox.service.dialects.verl_tool import (
    MAX_OBSERVATION_CHARS,
    decode_actions,
    extract_program,
    format_observation,
)
from rocstar.sandbox.service.validation import ServiceLimits
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError
from tests.fakes.sandbox import FakeSandbox, denied, error, ok, timeout

CLIENT = json.loads((Path(__file__).parent / "recordings" / "verl_tool.json").read_text())
LOOP = [sent for sent in CLIENT["requests"] if sent["path"] == "/get_observation"]
TOOL = [sent for sent in CLIENT["requests"] if sent["path"] == "/run_code"]
RULES = ServiceLimits(flavours=("stdlib", "bash"))
INVALID = {"obs": "", "invalid_reason": "no program was found"}


def answer_of(request: ExecRequest) -> ExecResult:
    return ok(f"{request.stdin}|{request.code}\n")


async def test_what_its_agent_loop_sends_is_answered_as_its_server_does(serve: Any) -> None:
    expected: list[tuple[Any, bool, bool]] = [
        ("\n```result\n|print(6 * 7)\n```\n", False, True),
        ("\n<result>\n9|print(input())\n</result>\n", False, True),
        ("\n|x = 1\nprint(x)\n```\n", False, True),
        (INVALID, False, False),
        ("", True, True),
        ("", True, True),
    ]
    async with serve(FakeSandbox(answer_of), service_limits=RULES) as service:
        for sent, (observation, done, valid) in zip(LOOP, expected, strict=True):
            status, answer = await service.post(sent["path"], sent["body"], headers=sent["headers"])
            assert status == 200
            assert answer.pop("processing_time_ms") >= 0
            assert answer == {"observations": [observation], "dones": [done], "valids": [valid]}


def test_its_tool_was_recorded_in_both_languages() -> None:
    assert {sent["body"]["language"] for sent in TOOL} == {"python", "bash"}


@pytest.mark.parametrize("sent", TOOL, ids=lambda sent: sent["body"]["language"])
async def test_its_tool_for_sandboxfusion_finds_what_it_formats(serve: Any, sent: Any) -> None:
    """It sends two fields, and prints execution_time with four digits: null would end it."""
    fake = FakeSandbox(lambda request: ok("42\n"))
    async with serve(fake, service_limits=RULES) as service:
        status, answer = await service.post(sent["path"], sent["body"], headers=sent["headers"])
    assert (status, answer["status"], answer["compile_result"]) == (200, "Success", None)
    assert f"{answer['run_result']['execution_time']:.4f}" and answer["run_result"]["stdout"] == "42\n"
    expected = "bash" if sent["body"]["language"] == "bash" else "stdlib"
    assert [request.flavour for request in fake.requests] == [expected]
    assert (fake.requests[0].code == sent["body"]["code"]) == (expected == "bash")


@pytest.mark.parametrize(
    ("action", "program"),
    [
        ("```py\nx\n```", ("py", "x")),
        ("```\npython\nx\n```", ("python", "x")),
        ("```bash\nls\n```", ("bash", "ls")),
        ("```sh\nls\n```\n```python\nx\n```\n```bash\nid\n```", ("sh", "ls\nid")),
        ("```pythonic\nx\n```", ("", "")),
        ("<python>a</python> ```bash\nls\n```", ("python", "a")),
        ("<python>a</bash>", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_program_of_an_action(action: str, program: tuple[str, str]) -> None:
    assert extract_program(action) == program


class Watched(str):
    """Text that counts how many of its characters are looked through for a word."""

    looked = 0

    def find(self, word: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        found = super().find(word, start)
        self.looked += (len(self) if found < 0 else found) - start
        return found


@pytest.mark.parametrize("begun", ["<python>", "<bash><python>", "```py\n", "```python ```\nbash ", "<python></bash>"])
def test_blocks_that_are_only_begun_are_looked_through_once(begun: str) -> None:
    text = Watched(begun * 2000)
    extract_program(text)
    assert text.looked <= 4 * len(text)


@pytest.mark.parametrize(
    ("action", "stdin"),
    [
        ("```input\n1 2\n\n```", "1 2"),
        ("```input\n\n```", ""),
        ("```input\n```", "field"),
        ("x", "field"),
        ("```input\nno end", "field"),
    ],
)
def test_the_input_of_an_action(action: str, stdin: str) -> None:
    body = {"trajectory_ids": ["a"], "actions": [f"<python>1</python>{action}"]}
    body["extra_fields"] = [{"stdin": "field"}]
    _, (request,) = decode_actions(json.dumps(body).encode(), RULES, "")
    assert request.stdin == stdin


async def test_a_shell_is_no_tool_where_there_is_none(serve: Any) -> None:
    body = {"trajectory_ids": ["a"], "actions": ["```bash\nls\n```"]}
    async with serve(FakeSandbox({}), service_limits=ServiceLimits(flavours=("stdlib",))) as service:
        assert (await service.post("/get_observation", body))[1]["observations"] == [INVALID]
        assert (await service.get("/health"))[1]["tools"] == ["python_code", "finish"]


async def test_a_shell_program_that_is_too_long_fails_alone(serve: Any) -> None:
    """A pool refuses it, which would be the failure of all actions that came with it."""

    def refused(request: ExecRequest) -> ExecResult:
        if request.flavour == "bash":
            check_bash(request.code)
        return answer_of(request)

    longest = "#" * MOST_SHELL_BYTES
    actions = ["<python>1</python>", f"<bash>{longest}#</bash>", f"<bash>{longest[2:]}\u00e9</bash>"]
    body = {"trajectory_ids": ["a", "b", "c"], "actions": actions}
    async with serve(FakeSandbox(refused), service_limits=RULES) as service:
        status, answer = await service.post("/get_observation", body)
    assert status == 200 and answer["valids"] == [True, False, True]
    invalid = {**INVALID, "invalid_reason": "a bash program of more than 131071 bytes is not run"}
    assert answer["observations"][:2] == ["\n<result>\n|1\n</result>\n", invalid]


def test_what_the_policy_is_shown() -> None:
    assert format_observation(ok("1\n", stderr="note\n")) == "1\n\nnote"
    assert format_observation(error("ValueError: x\n")) == "ValueError: x"
    assert format_observation(timeout()) == "Execution timed out after 10 seconds."
    assert format_observation(denied()) == "the program ended by denied"
    assert len(format_observation(ok("x" * (MAX_OBSERVATION_CHARS + 5)))) == MAX_OBSERVATION_CHARS


async def test_a_failure_of_ours_is_no_observation(serve: Any) -> None:
    """Its client retries all statuses but 200."""
    for retryable in (True, False):
        failure = SandboxError("no zygote", kind="zygote_died", retryable=retryable)
        async with serve(FakeSandbox({}, otherwise=failure), service_limits=RULES) as service:
            status, answer = await service.post(LOOP[0]["path"], LOOP[0]["body"])
        assert status >= 500 and "observations" not in answer


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"actions": ["a"]}, ["trajectory_ids"]),
        ({"trajectory_ids": [], "actions": []}, ["trajectory_ids"]),
        ({"trajectory_ids": ["a"], "actions": [1]}, ["actions", 0]),
        ({"trajectory_ids": ["a"], "actions": ["x", "y"]}, ["actions"]),
        ({"trajectory_ids": ["a"], "actions": ["x"], "finish": [True, False]}, ["finish"]),
        ({"trajectory_ids": ["a"], "actions": ["x"], "extra_fields": ["stdin"]}, ["extra_fields", 0]),
        ({"trajectory_ids": ["a"], "actions": ["\ud800"]}, ["actions", 0]),
        (
            {"trajectory_ids": ["a"], "actions": ["```py\nx\n```"], "extra_fields": [{"stdin": "\ud800"}]},
            ["extra_fields", 0],
        ),
    ],
)
async def test_a_body_that_does_not_fit_is_a_422_that_names_the_field(serve: Any, body: Any, loc: list[Any]) -> None:
    async with serve(FakeSandbox({}), service_limits=RULES) as service:
        status, answer = await service.post("/get_observation", body)
    assert status == 422
    assert ["body", *loc] in [one["loc"] for one in answer["detail"]]


async def test_many_actions_are_packed_and_keep_their_order(serve: Any) -> None:
    """As objects, 60,000 of them would occupy the garbage collector for 56 ms."""
    texts = [f"<python>{number}</python>" if number % 3 else "nothing" for number in range(PACKED_FROM)]
    finish = [number == 4 for number in range(PACKED_FROM)]
    body = {"trajectory_ids": ["a"] * PACKED_FROM, "actions": texts, "finish": finish}
    assert isinstance(decode_actions(json.dumps(body).encode(), RULES, "")[0], PackedItems)
    fake = FakeSandbox(lambda request: ok(request.code))  # answers the last one first
    async with serve(fake) as service:
        _, answer = await service.post("/get_observation", body)
    assert answer["dones"] == finish
    for number, observation in enumerate(answer["observations"]):
        expected = "" if number == 4 else f"\n<result>\n{number}\n</result>\n" if number % 3 else INVALID
        assert observation == expected
        assert answer["valids"][number] is (expected != INVALID)
    assert len(fake.requests) == PACKED_FROM - (PACKED_FROM + 2) // 3 - 1
