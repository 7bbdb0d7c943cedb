"""A foreign agent in the place of the turn loop: a function, a program, their results, and their ends."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rocstar.engine.gateway.endpoint import open_gateway
from rocstar.engine.gateway.harness import GatewayHarness, Solve, function_agent
from rocstar.engine.gateway.programs import MAX_OUTPUT_BYTES, AgentClient, run_program
from rocstar.engine.gateway.session import Sessions
from rocstar.engine.gateway.tool_errors import is_error_text
from rocstar.engine.inference.base import InferenceError
from rocstar.engine.rollout.rollout import Agent, AgentFailure, run_trajectory
from rocstar.engine.types import Failed, FinishReason, Given, Scored, Task, Trajectory
from rocstar.engine.waits import WaitBoard
from tests.engine.serve.conftest import call

from .test_gateway import KEY, make_agent

TASK = Task(id="sum", source="test", question="2+2?", answer="4")
AGENT = Path(__file__).parents[3] / "examples" / "own_agent" / "agent.py"


@asynccontextmanager
async def harnessed(agent: Agent, solve: Solve) -> AsyncIterator[Agent]:
    async with open_gateway(Sessions(), model="policy", max_context=4096) as gateway:
        yield replace(agent, harness=GatewayHarness(gateway, solve))
        assert len(gateway.sessions) == 0


async def attempt(agent: Agent, solve: Solve) -> Trajectory:
    async with harnessed(agent, solve) as foreign:
        return await run_trajectory(foreign, TASK, KEY)


async def ask(client: AgentClient, messages: list[Any], **fields: Any) -> Any:
    """Return the model's next message."""
    headers, body = {"Authorization": f"Bearer {client.api_key}"}, {"model": client.model, "messages": messages}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{client.base_url}/chat/completions", json=body | fields) as response,
    ):
        return (await response.json())["choices"][0]["message"]


async def loop(task: Task, client: AgentClient, sandbox: Any, *, functions: Any, results: list[str], **_: Any) -> str:
    """Answer calls with these results."""
    messages, left = [{"role": "user", "content": task.question}], list(results)
    while True:
        message = await ask(client, messages, tools=functions)
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": left.pop(0)} for c in message["tool_calls"]]


async def test_an_agent_with_the_loops_messages_gives_the_loops_trajectory() -> None:
    replies = [call("2+2"), call("4+1"), "It is 4"]
    expected = await run_trajectory(make_agent(replies), TASK, KEY)
    agent = make_agent(replies)
    made = await attempt(agent, function_agent(loop, None, {"functions": agent.chat.tools, "results": ["4", "4"]}))
    assert made.given == Given(answer="It is 4") and made == replace(expected, given=made.given)


async def test_an_error_that_the_agent_reports_is_one_of_the_trajectory() -> None:
    agent = make_agent([call("2+2"), "<tool_call>no JSON</tool_call>"])
    made = await attempt(agent, function_agent(loop, None, {"functions": agent.chat.tools, "results": ["Error: no"]}))
    assert [(r.status, r.is_error) for r in made.results] == [("error", True), ("malformed_call", True)]
    assert [len(turn.calls) for turn in made.turns] == [1, 1]


async def test_two_roots_are_two_sequences_of_one_trajectory() -> None:
    async def solve(task: Task, client: AgentClient, sandbox: Any) -> float:
        for text in ("one", "two"):
            await ask(client, [{"role": "user", "content": text}])
        return 0.5

    made = await attempt(make_agent(["a", "b"]), function_agent(solve, None, {}))
    assert len(made.sequences) == len(made.turns) == 2 and made.given == Given(reward=0.5)
    assert [made.ids[part][-2:].tolist() for part in made.sequences] == [
        made.ids[turn.start : turn.end].tolist() for turn in made.turns
    ]


@pytest.mark.parametrize(
    ("value", "kind"), [({"anser": "4"}, "agent_error"), (float("nan"), "agent_error"), ([], "agent_error")]
)
async def test_a_result_that_is_none_fails_the_attempt(value: Any, kind: str) -> None:
    async def solve(task: Task, client: AgentClient, sandbox: Any) -> Any:
        await ask(client, [{"role": "user", "content": "one"}])
        return value

    outcome = (await attempt(make_agent(["a"]), function_agent(solve, None, {}))).outcome
    assert isinstance(outcome, Failed) and outcome.kind == kind


async def test_an_agent_that_asks_for_nothing_has_no_reward() -> None:
    async def solve(task: Task, client: AgentClient, sandbox: Any) -> str:
        return "4"

    made = await attempt(make_agent([]), function_agent(solve, None, {}))
    assert isinstance(made.outcome, Failed) and made.outcome.kind == "agent_silent" and not len(made.ids)


async def test_a_failure_of_the_engine_is_no_failure_of_the_agent() -> None:
    def script(request: Any) -> str:
        raise InferenceError("server_died", "gone", retryable=True)

    made = await attempt(make_agent(script), function_agent(loop, None, {"functions": [], "results": []}))
    assert isinstance(made.outcome, Failed) and (made.outcome.kind, made.outcome.retryable) == ("server_died", True)


async def test_an_agent_that_fails_behind_a_limit_is_truncated() -> None:
    async def solve(task: Task, client: AgentClient, sandbox: Any) -> str:
        for number in range(3):
            await ask(client, [{"role": "user", "content": str(number)}])
        raise RuntimeError("no answer")

    made = await attempt(make_agent(["a", "b"], max_turns=2), function_agent(solve, None, {}))
    assert made.finish_reason is FinishReason.max_turns and isinstance(made.outcome, Scored)
    assert [turn.text for turn in made.turns] == ["a", "b"]


async def test_a_request_is_on_the_wait_board_of_its_trajectory() -> None:
    """The watchdog takes a board without changes for a standstill."""
    board, kinds = WaitBoard(), set[tuple[str, str]]()

    def script(request: Any) -> str:
        kinds.update((wait.who, wait.kind) for wait in board.entries)
        return "4"

    agent = make_agent(script)
    async with harnessed(agent, function_agent(loop, None, {"functions": [], "results": []})) as foreign:
        with board.installed():
            await run_trajectory(foreign, TASK, KEY)
    assert kinds == {(str(KEY), "tool"), (str(KEY), "generate")}


# ---- programs ----


def program(source: str) -> list[str]:
    return [sys.executable, "-c", source]


async def run(source: str, log: Path | None = None, task: Task = TASK) -> Given:
    client = AgentClient(url="http://127.0.0.1:1", api_key="secret", model="policy")
    return await run_program(program(source), task, client, log)


WRITES = "import json, os; open(os.environ['ROCSTAR_RESULT'], 'w').write(json.dumps({}))"


async def test_a_program_has_the_clients_variables_and_no_other_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCSTAR_REDIS_URL", "redis://:password@host")
    given = await run(WRITES.format("{'answer': json.dumps(dict(os.environ))}"))
    environment = json.loads(given.answer or "")
    assert environment["OPENAI_BASE_URL"] == environment["OPENAI_API_BASE"] == "http://127.0.0.1:1/v1"
    assert environment["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:1"
    assert environment["OPENAI_API_KEY"] == environment["ANTHROPIC_AUTH_TOKEN"] == "secret"
    assert json.loads(environment["ROCSTAR_TASK"]) == {"id": "sum", "question": "2+2?", "context": []}
    assert "ROCSTAR_REDIS_URL" not in environment and set(environment["PATH"]) == set(os.environ["PATH"])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import sys; print('no luck'); sys.exit(3)", "ended with 3; its last output: no luck"),
        ("import os; os.kill(os.getpid(), 9)", "ended with 137"),
        (WRITES.format("{'reward': 'high'}"), "reward is 'high'; give a finite number or null"),
        (WRITES.format("{'score': 1}"), "is unknown; give answer, reward or both"),
        ("import os; open(os.environ['ROCSTAR_RESULT'], 'w').write('{')", "ROCSTAR_RESULT: Expecting"),
    ],
)
async def test_a_program_that_fails_is_told_apart_from_a_wrong_answer(source: str, words: str) -> None:
    async def fails(task: Task, client: AgentClient) -> Given:
        await ask(client, [{"role": "user", "content": "one"}])
        return await run_program(program(source), task, client, None)

    outcome = (await attempt(make_agent(["a"]), fails)).outcome
    assert isinstance(outcome, Failed) and outcome.kind in ("agent_exit", "agent_result") and words in outcome.detail


async def test_a_task_that_fits_into_no_variable_fails_its_attempt() -> None:
    with pytest.raises(AgentFailure, match=r"not started with a task of 2000.. characters: Argument list too long"):
        await run("pass", task=replace(TASK, question="x" * 200_000))


async def test_a_log_takes_no_more_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocstar.engine.gateway.programs.MAX_LOG_BYTES", 100)
    log = tmp_path / "agent.log"
    for _ in range(3):
        await run("print('x' * 120)", log)
    assert 100 < log.stat().st_size < 200


async def test_the_end_of_the_output_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "agent.log"
    await run(f"print('x' * {2 * MAX_OUTPUT_BYTES} + 'end')", log)
    text = log.read_text()
    assert text.startswith("--- sum\nxxx") and text.endswith("xend\n\n") and len(text) < MAX_OUTPUT_BYTES + 100


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def test_a_program_and_its_children_end_with_its_attempt(tmp_path: Path) -> None:
    """Also a child in a session of its own, where no signal of its group reaches it."""
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    source = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    running = asyncio.create_task(run(source))
    found = [int(pid) for pid in (await asyncio.to_thread(pids.read_text)).split()]
    assert all(map(is_alive, found)) and len(found) == 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(map(is_alive, found))


async def test_the_example_is_an_agent() -> None:
    """Its calls reach the record with their results, by an HTTP client of its own in its own process."""
    calls = [{"name": "calculate", "arguments": {"expression": text}} for text in ("6 * 7", "six times")]
    replies = [f"<tool_call>\n{json.dumps(one)}\n</tool_call>" for one in calls]
    solve = partial(run_program, [sys.executable, str(AGENT)], log=None)
    made = await attempt(make_agent([*replies, "42"]), solve)
    assert made.given == Given(answer="42") and made.starts == (0,)
    assert [(r.text, r.is_error) for r in made.results] == [
        ("42", False),
        ("Error: give two numbers with +, - or * between them", True),
    ]


@pytest.mark.parametrize(
    ("text", "is_error"),
    [
        ("42", False),
        ('{"error": "no such file"}', True),
        ("{'error': 'no such file'}", True),
        ('{"error": null, "value": 3}', False),
        ('{"returncode": 1, "output": "x"}', True),
        ('{"returncode": 0, "output": "x"}', False),
        ("<returncode>2</returncode>\n<output>x</output>", True),
        ("<returncode>0</returncode>\n<output>2</output>", False),
        ("x\nExit code: 1\n", True),
        ("Exit code 0", False),
        ("Command exited with code 127", True),
        ("An error occurred while running the tool. Please try again.", True),
        ("Call id: 7\nError:\nbad", True),
        ("ValueError: bad", True),
        ("x\nTraceback (most recent call last):\n  File ...", True),
        ("The error rate is 3", False),
        ("Errors: 0", False),
        ("[" * 100_000, False),
        ('{"a":' * 100_000, False),
        ("\n" * 300_000, False),  # half an hour if each line searches all blank lines behind it
        (" \t" * 300_000, False),
    ],
)
def test_conventions_of_errors(text: str, is_error: bool) -> None:
    assert is_error_text(text) == is_error
