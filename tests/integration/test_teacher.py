"""A cold start from another model's conversations: `rocstar rollout --teacher`, then `sft.data`."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.teacher import Answer, calls, chat_endpoint

from ..patience import PATIENCE_S
from .conftest import TOOL

Rows = Callable[..., list[dict[str, Any]]]


@contextmanager
def teacher(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve it in a thread; yield its address and the bodies of its requests."""
    requests: list[dict[str, Any]] = []
    addresses: list[str] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        async with chat_endpoint(answer, requests) as url:
            addresses.append(url)
            ready.set()
            await done.wait()

    done = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait(PATIENCE_S)
    try:
        yield addresses[0], requests
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


def toss(body: dict[str, Any]) -> dict[str, Any]:
    """Call the tool, then answer: wrong for every fourth question, and not at all for "Toss 18"."""
    number = int(next(m["content"] for m in body["messages"] if m["role"] == "user").removeprefix("Toss "))
    if number == 18:
        return {"status": 400}
    results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    if not results:
        return calls(TOOL, {"code": f"print({1 + (number % 2 if number % 4 else 1)})", "input": ""})
    return {"role": "assistant", "content": f"<answer>\\boxed{{{results[-1].strip()}}}</answer>"}


def test_a_tiny_model_learns_the_form_of_what_a_teacher_did(workshop: Any, tmp_path: Path, read_rows: Rows) -> None:
    out = tmp_path / "taught.jsonl"
    command = ["rollout", "coin.toml", "--teacher-model=large", f"--out={out}", "--limit=12", "--json"]
    with teacher(toss) as (url, requests):
        refused = workshop.main(*command)
        assert refused.returncode == 2 and "need --teacher URL" in refused.stderr
        ended = workshop.succeed(*command, f"--teacher={url}", "--only-correct")
    assert json.loads(ended.stdout) == {"attempts": 12, "correct": 8, "failed": 1, "conversations": 8}
    assert {body["model"] for body in requests} == {"large"} and requests[0]["tools"][0]["function"]["name"] == TOOL
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [[m["role"] for m in row["messages"]] for row in rows] == [["user", "assistant", "tool", "assistant"]] * 8
    assert "exists; take another" in workshop.main(*command, f"--teacher={url}").stderr
    run = tmp_path / "run"
    options = [f"--sft.data={out}", "--sft.steps=80", "--stages.1.steps=1", "--stages.1.filter_rollouts=0"]
    workshop.succeed("train", "coin.toml", "--output-dir", str(run), *options)
    (boxed,) = (row["sft/boxed"] for row in read_rows(run) if "sft/boxed" in row)
    first = next(row for row in read_rows(run, "rl"))
    assert boxed >= 0.8 and first["tool/calls_mean"] >= 0.8, (boxed, first)


HARNESS = """
import aiohttp

COIN = {"type": "object", "properties": {"coin": {"type": "string"}}}
TOSS = {"name": "toss", "description": "", "parameters": COIN}


async def solve(task, client, sandbox):
    messages = [{"role": "system", "content": "Use toss."}, {"role": "user", "content": task.question}]
    headers, body = {"Authorization": f"Bearer {client.api_key}"}, {"model": client.model}
    async with aiohttp.ClientSession(headers=headers) as http:
        for _ in range(3):
            body |= {"messages": messages, "tools": [{"type": "function", "function": TOSS}]}
            async with http.post(f"{client.base_url}/chat/completions", json=body) as response:
                message = (await response.json())["choices"][0]["message"]
            if not message.get("tool_calls"):
                return message["content"]
            side = str(1 + int(task.question.split()[1]) % 2)
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": side}
            messages = [*messages, message, result]
"""


def follow(body: dict[str, Any]) -> dict[str, Any]:
    """What the harness asks for: its tool, then the answer."""
    last = body["messages"][-1]
    if last["role"] == "user":
        return calls("toss", {"coin": last["content"].removeprefix("Toss ")})
    return {"role": "assistant", "content": f"<answer>\\boxed{{{last['content']}}}</answer>"}


def test_a_tiny_model_learns_the_format_of_a_harness(workshop: Any, tmp_path: Path, read_rows: Rows) -> None:
    (workshop.directory / "toss_harness.py").write_text(HARNESS)
    out, run, agent = tmp_path / "taught.jsonl", tmp_path / "run", "--agent.kind=toss_harness:solve"
    with teacher(follow) as (url, requests):
        command = ["rollout", "coin.toml", agent, "--teacher-model=large", f"--out={out}", "--limit=12", "--json"]
        ended = workshop.succeed(*command, f"--teacher={url}", "--only-correct")
    assert json.loads(ended.stdout) == {"attempts": 12, "correct": 12, "failed": 0, "conversations": 12}
    assert len(requests) == 24 and requests[1]["messages"][0] == {"role": "system", "content": "Use toss."}
    options = [f"--sft.data={out}", "--sft.tools=row", "--sft.steps=120", "--stages.0.steps=1", "--stages.1.steps=1"]
    workshop.succeed("train", "coin.toml", agent, "--output-dir", str(run), *options, "--stages.1.filter_rollouts=0")
    first = next(row for row in read_rows(run, "rl"))
    assert first["tool/calls_mean"] >= 0.8 and first["reward/mean"] >= 0.5, first


def test_a_teacher_that_only_fails_is_one_error(workshop: Any, tmp_path: Path) -> None:
    command = ["rollout", "coin.toml", "--teacher-model=large", f"--out={tmp_path / 'none.jsonl'}", "--limit=2"]
    with teacher(lambda body: {"status": 401}) as (url, _):
        ended = workshop.main(*command, f"--teacher={url}")
    assert ended.returncode == 2 and "every attempt failed" in ended.stderr and "401" in ended.stderr
    assert not (tmp_path / "none.jsonl").exists()
