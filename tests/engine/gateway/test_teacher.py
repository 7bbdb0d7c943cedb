"""A teacher behind the gateway: its answers reach the agent, and its conversations are rows of `sft.data`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rocstar.engine.gateway.endpoint import open_gateway
from rocstar.engine.gateway.session import Sessions
from rocstar.engine.gateway.teacher import Teacher, TeacherSession
from rocstar.train.learner.cold_start import read_conversations
from tests.engine.gateway.test_gateway import KEY, USER, Client, make_agent
from tests.fakes.teacher import Answer, calls, chat_endpoint

ADD = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
SYSTEM = {"role": "system", "content": "Use add."}
REQUEST = {"model": "m", "messages": [SYSTEM, USER], "tools": [ADD]}


def script(body: dict[str, Any]) -> dict[str, Any]:
    results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    if not results:
        return calls("add", {"a": 2, "b": 2}, "Let me add.") | {"reasoning_content": "2 and 2"}
    return {"role": "assistant", "content": f"It is {results[-1]}"}


@asynccontextmanager
async def taught(answer: Answer, requests: list[dict[str, Any]], **limits: Any) -> AsyncIterator[Client]:
    sessions = Sessions()
    async with (
        chat_endpoint(answer, requests) as url,
        open_gateway(sessions, model="policy", max_context=None) as gateway,
        aiohttp.ClientSession() as http,
    ):
        teacher = Teacher(http=http, url=url, model="large", api_key="k")
        session = TeacherSession(teacher, make_agent([], **limits), KEY)
        secret = sessions.open(session)
        yield Client(session, gateway, secret, http)
        await sessions.close(secret)


def rows_of(client: Client) -> list[dict[str, Any]]:
    session: Any = client.session
    found: list[dict[str, Any]] = session.conversations()
    return found


async def one_turn(client: Client, messages: list[Any]) -> dict[str, Any]:
    answer = await client.chat(messages, tools=[ADD])
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


async def test_an_agents_conversation_with_the_teacher_is_a_row_that_the_cold_start_reads(tmp_path: Path) -> None:
    requests: list[dict[str, Any]] = []
    async with taught(script, requests) as client:
        first = await one_turn(client, [SYSTEM, USER])
        assert first["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2, "b": 2}'}
        first.pop("reasoning_content")  # agents drop it, and write the arguments anew
        first["tool_calls"][0]["function"]["arguments"] = '{"b":2,"a":2}'
        result = {"role": "tool", "tool_call_id": "call_9", "content": "4"}
        last = await one_turn(client, [SYSTEM, USER, first, result])
        assert last["content"] == "It is 4"
        (row,) = rows_of(client)
    assert [body["key"] for body in requests] == ["Bearer k"] * 2
    assert [(body["model"], body["tools"], len(body["messages"])) for body in requests] == [
        ("large", [ADD], 2),
        ("large", [ADD], 4),
    ]
    (tmp_path / "chat.jsonl").write_text(json.dumps(row) + "\n")
    (read,) = read_conversations(tmp_path / "chat.jsonl")
    assert read == row and row["tools"] == [ADD]
    assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert row["messages"][2]["reasoning_content"] == "2 and 2", "as the teacher wrote it"
    ids, mask = client.session.agent.chat.encode_conversation(row["messages"], row["tools"])
    assert any(mask) and len(ids) == len(mask)


async def test_what_an_agent_edited_or_asked_again_for_nothing_is_no_row() -> None:
    requests: list[dict[str, Any]] = []
    async with taught(script, requests) as client:
        first = await one_turn(client, [SYSTEM, USER])
        await one_turn(client, [SYSTEM, USER])  # a sibling that the agent does not go on with
        result = {"role": "tool", "tool_call_id": "call_9", "content": "4"}
        edited = {"role": "assistant", "content": "I called add."}
        await one_turn(client, [SYSTEM, USER, edited, {"role": "user", "content": "Observation: 4"}])
        await one_turn(client, [SYSTEM, USER, first, result])
        (row,) = rows_of(client)
    assert row["messages"][-1]["content"] == "It is 4" and len(requests) == 4


@pytest.mark.parametrize(
    ("message", "status", "kind"),
    [
        ({"status": 401}, 500, "teacher_refused"),
        ({"status": 503}, 503, "teacher_refused"),
        ({"role": "assistant", "content": 5}, 503, "bad_reply"),
    ],
)
async def test_a_teacher_that_fails_ends_the_session(message: Any, status: int, kind: str) -> None:
    async with taught(lambda body: dict(message), []) as client:
        answer = await client.chat([USER], status=status)
        assert client.session.failure is not None and client.session.failure.kind == kind
        assert kind in json.dumps(answer) and rows_of(client) == []


async def test_limits_close_the_session() -> None:
    async with taught(lambda body: {"role": "assistant", "content": "Well"}, [], max_turns=1) as client:
        message = (await client.chat([USER]))["choices"][0]["message"]
        closing = await client.chat([USER, message, USER])
        assert "last answer" in closing["choices"][0]["message"]["content"] and len(rows_of(client)) == 1
        assert str(client.session.finish) == "max_turns"
