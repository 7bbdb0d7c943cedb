"""Foreign agents and gateways of public packages, unchanged, in front of the gateway and of a server."""

import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.serve.served_sessions import training_trace
from tests import needs
from tests.engine.gateway.foreign_clients import (
    CLIENTS,
    GATEWAYS,
    RECORDINGS,
    run_client,
    run_in_gateway,
    written_turns,
)
from tests.engine.gateway.fuzzed_clients import check_columns, events_of
from tests.engine.gateway.test_dialects import REWRITES
from tests.engine.serve.conftest import Client, keeping, make_agent, opened, ready_tool
from tests.fakes.json_lines import read_folder

FOLDERS = os.environ.get("ROCSTAR_AGENTS", "")
Rows = list[list[Any]]
"""Ids of the prompt, sampled ids and log-probs of each request."""


def traced(trace: dict[str, Any]) -> Rows:
    return [
        [turn[f"{name}"] for name in ("prompt_token_ids", "completion_token_ids", "per_token_logps")]
        for turn in trace["turns"]
    ]


def recorded(folder: Path) -> Rows:
    """What the records of single requests have."""
    rows = []
    for record in read_folder(folder / "trajectories"):
        begin = record["segments"][0]["end"]
        rows.append([record["ids"][:begin], record["ids"][begin:], record["logprobs"][begin:]])
    return rows


async def serve(stack: AsyncExitStack, folder: Path, name: str) -> Client:
    """A server over a policy that follows the client's script."""
    turns, tool = written_turns(name), ready_tool()
    agent = make_agent(lambda request: next(turns), tool)
    store = await stack.enter_async_context(keeping(folder, agent))
    return await stack.enter_async_context(opened(agent, tool, store, max_context=4000))


@needs.AGENTS.unless(bool(FOLDERS))
@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
async def test_an_agent_completes_a_tool_task_and_all_that_it_sampled_trains(name: str) -> None:
    venv, _, npm = FOLDERS.partition(":")
    status, output, session, policy = await run_in_gateway(name, Path(venv), Path(npm))
    assert status == 0, output
    columns = session.graph.columns()
    assert check_columns(columns, policy) == len(policy.log) == len(CLIENTS[name].script)
    assert len(columns.starts) == (2 if name in REWRITES else 1)
    if name in GATEWAYS:
        assert json.loads(output.splitlines()[-1]) == traced(training_trace(session))


@needs.AGENTS.unless(bool(FOLDERS))
@pytest.mark.slow
@pytest.mark.parametrize("name", GATEWAYS)
async def test_a_gateway_in_front_of_a_server_stores_what_the_records_have(name: str, tmp_path: Path) -> None:
    venv, _, npm = FOLDERS.partition(":")
    async with AsyncExitStack() as stack:
        client = await serve(stack, tmp_path / "served", name)
        status, output = await run_client(name, client.endpoint.url, "none", Path(venv), Path(npm))
    assert status == 0, output
    stored = json.loads(output.splitlines()[-1])
    assert stored == recorded(tmp_path / "served") and len(stored) == 2


@pytest.mark.parametrize("prefix", ["", "/sessions/one"])
@pytest.mark.parametrize("name", GATEWAYS)
async def test_the_answer_to_a_recorded_request_has_what_the_gateway_stores(
    name: str, prefix: str, tmp_path: Path
) -> None:
    """The fields are those of rLLM's data_process.py and of Agent Lightning's routes/events.py."""
    stored: Rows = []
    async with AsyncExitStack() as stack:
        client = await serve(stack, tmp_path / "served", name)
        for line in (RECORDINGS / f"{name}.jsonl").read_text().splitlines():
            sent = json.loads(line)
            async with client.post(prefix + sent["route"], sent["body"]) as response:
                answer = await response.read()
                assert response.status == 200, answer
            chunks = events_of(answer) if sent["body"].get("stream") else [json.loads(answer)]
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            ids = [token for choice in choices for token in choice.get("token_ids") or ()]
            rows = [row for choice in choices if choice.get("logprobs") for row in choice["logprobs"]["content"]]
            stored.append([chunks[0]["prompt_token_ids"], ids, [row["logprob"] for row in rows]])
            if sent["body"].get("stream"):
                assert next(c for c in choices if c["delta"].get("tool_calls") or c["delta"].get("content"))[
                    "token_ids"
                ]
        trace = json.loads(await client.get(f"{prefix}/trace")) if prefix else None
    assert stored == (traced(trace) if trace else recorded(tmp_path / "served")) and len(stored) == 2
