"""Sessions of a server, requests in other dialects, and log-probs of chat."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.gateway.messages import Message, Request
from rocstar.engine.serve.conversation_manager import ServeOptions
from rocstar.engine.serve.endpoint import Endpoint
from rocstar.engine.serve.served_sessions import IDLE_S, ServedSession, ServedSessions
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.guard import Owner, Owners
from tests.fakes.scripted_policy import Reply, ScriptedPolicy, logprob_of, on_virtual_time

from .conftest import QUESTION, TOKENIZER, Serving, call, events, make_agent, of_stream, opened, ready_tool, scripted
from .test_kept import outcomes, records

TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}
ASK = {"model": "any", "messages": [QUESTION]}
MESSAGES = {"model": "any", "max_tokens": 50, "messages": [QUESTION]}
CHAT = "/sessions/one/v1/chat/completions"


async def test_a_session_is_one_trajectory(serving: Serving, tmp_path: Path) -> None:
    async with serving(scripted([call("2+2"), "It is 4"]), keeps=True) as client:
        first = await client.json(CHAT, {**ASK, "tools": [TOOL]})
        message = first["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "4"}
        await client.json(CHAT, {**ASK, "messages": [QUESTION, message, result], "tools": [TOOL]})
        assert records(tmp_path / "served") == []
        closed = await (await client.session.delete(client.endpoint.url + "/sessions/one")).json()
        again = await client.session.delete(client.endpoint.url + "/sessions/one")
        assert again.status == 404
        requests = client.agent.inference.requests
        assert list(requests[1].ids[: len(requests[0].ids)]) == list(requests[0].ids)
    (record,) = records(tmp_path / "served")
    assert record["task"]["meta"]["conversation"] == closed["id"]
    assert [segment["origin"] for segment in record["segments"]] == ["prompt", "policy", "tool", "policy"]
    assert [turn["text"] for turn in record["turns"]] == [call("2+2"), "It is 4"]
    assert outcomes(tmp_path / "served") == ["unjudged"]


async def test_an_edited_history_is_a_second_sequence_of_the_trajectory(serving: Serving, tmp_path: Path) -> None:
    async with serving(lambda request: "It is 4", keeps=True) as client:
        await client.json(CHAT, ASK)
        edited = {"role": "assistant", "content": "It is five"}
        await client.json(CHAT, {**ASK, "messages": [QUESTION, edited, QUESTION]})
    (record,) = records(tmp_path / "served")
    assert [segment["origin"] for segment in record["segments"]] == ["prompt", "policy"] * 2
    assert record["task"]["meta"]["roots"] == {"first": 1, "history_edited": 1}
    assert record["starts"] == [0, record["segments"][2]["start"]]


async def test_open_sessions_are_kept_at_the_end_and_when_they_are_idle(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocstar.engine.serve.served_sessions.IDLE_S", 0.0)
    closed, close = asyncio.Event(), ServedSessions.close

    async def noted_close(sessions: ServedSessions, served: ServedSession) -> None:
        await close(sessions, served)
        closed.set()

    monkeypatch.setattr(ServedSessions, "close", noted_close)
    async with serving(lambda request: "4", keeps=True) as client:
        await client.json(CHAT, ASK)
        await closed.wait()
        monkeypatch.setattr("rocstar.engine.serve.served_sessions.IDLE_S", IDLE_S)
        await client.json(CHAT, ASK)
    assert outcomes(tmp_path / "served") == ["unjudged", "unjudged"]


@on_virtual_time
async def test_a_session_is_idle_from_its_latest_request_on() -> None:
    asked = Request(model="any", messages=(Message(role="user", text="2+2?"),))
    async with asyncio.TaskGroup() as tasks:
        agent = make_agent(lambda request: "4", ready_tool())
        endpoint = Endpoint(agent, tasks, ServeOptions(), store=None, note=print)
        served = endpoint.sessions.find("", "one", opens=True)
        await asyncio.sleep(IDLE_S - 1)
        await endpoint.sessions.sample(served, asked, b"digest")
        await asyncio.sleep(IDLE_S - 1)
        assert endpoint.sessions.find("", "one") is served
        await asyncio.sleep(2)
        with pytest.raises(RequestError, match="no session"):
            endpoint.sessions.find("", "one")
        endpoint.close()


async def test_a_session_belongs_to_its_owner() -> None:
    owners = Owners((Owner(name="a", token="a" * 16), Owner(name="b", token="b" * 16)))
    agent, tool = make_agent(lambda request: "4", ready_tool()), ready_tool()
    async with opened(agent, tool, owners=owners) as client:
        ours, theirs = ({"Authorization": f"Bearer {letter * 16}"} for letter in "ab")
        await client.json(CHAT, ASK, status=401)
        await client.json(CHAT, ASK, headers=ours)
        url = client.endpoint.url + "/sessions/one/trace"
        assert (await client.session.get(url, headers=theirs)).status == 404
        trace = await (await client.session.get(url, headers={"x-api-key": "a" * 16})).json()
        assert len(trace["turns"]) == 1


async def test_the_sessions_of_one_owner_leave_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocstar.engine.serve.served_sessions.MAX_SESSIONS", 2)
    owners = Owners((Owner(name="a", token="a" * 16), Owner(name="b", token="b" * 16)))
    agent, tool = make_agent(lambda request: "4", ready_tool()), ready_tool()
    async with opened(agent, tool, owners=owners) as client:
        for owner, key, status in (
            ("a", "1", 200),
            ("a", "2", 200),
            ("a", "3", 429),
            ("a", "2", 200),
            ("b", "1", 200),
        ):
            headers = {"Authorization": f"Bearer {owner * 16}"}
            await client.json(f"/sessions/{key}/v1/chat/completions", ASK, headers=headers, status=status)


async def test_a_trace_has_what_a_trainer_needs(serving: Serving) -> None:
    async with serving(lambda request: str(request.turn)) as client:
        answer = await client.json(CHAT, {**ASK, "return_token_ids": True})
        history = [QUESTION, answer["choices"][0]["message"], QUESTION]
        await client.json(CHAT, {**ASK, "messages": history})
        trace = await (await client.session.get(client.endpoint.url + "/sessions/one/trace")).json()
    first, second = trace["turns"]
    assert trace["schema_version"] == 1
    assert first["prompt_token_ids"] == answer["prompt_token_ids"]
    assert first["completion_token_ids"] == answer["choices"][0]["token_ids"]
    path = [*first["prompt_token_ids"], *first["completion_token_ids"]]
    assert second["prompt_token_ids"][: len(path)] == path
    for turn in (first, second):
        num_prompt, num_sampled = len(turn["prompt_token_ids"]), len(turn["completion_token_ids"])
        assert turn["loss_mask"] == [0] * num_prompt + [1] * num_sampled
        assert turn["per_token_logps"] == [logprob_of(token) for token in turn["completion_token_ids"]]


async def test_a_request_of_another_dialect_is_a_conversation(serving: Serving, tmp_path: Path) -> None:
    async with serving(lambda request: "4", keeps=True) as client:
        answer = await client.json("/v1/messages", {**MESSAGES, "temperature": 0.5})
        assert answer["content"] == [{"type": "text", "text": "4"}]
        counted = await client.json("/v1/messages/count_tokens", MESSAGES)
        assert counted["input_tokens"] == answer["usage"]["input_tokens"]
        responses = await client.json("/v1/responses", {"model": "any", "input": "2+2?"})
        assert responses["output"][0]["content"][0]["text"] == "4"
        ids = {"model": "any", "token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 9}}
        raw = await client.json("/inference/v1/generate", ids)
        assert raw["choices"][0]["token_ids"] == [*TOKENIZER.encode("4"), client.agent.chat.stop_id]
        (choice,) = raw["choices"]  # the checks of verifiers' client (renderers/client.py, 0.1.12)
        rows = choice["logprobs"]["content"]
        assert [row["token"] for row in rows] == [f"token_id:{token}" for token in choice["token_ids"]]
        assert [row["logprob"] for row in rows] == [logprob_of(token) for token in choice["token_ids"]]
        assert raw["request_id"] and raw["prompt_token_ids"] == [5, 6, 7]
        assert client.agent.inference.requests[0].sampling.temperature == 0.5
        refused = await client.json("/v1/messages", {**MESSAGES, "messages": []}, status=400)
        assert refused["type"] == "error"
        too_long = await client.json("/v1/messages", {**MESSAGES, "messages": [QUESTION] * 5000}, status=400)
        assert "5000 entries" in too_long["error"]["message"]
    assert outcomes(tmp_path / "served") == ["unjudged"] * 3


async def test_a_shutdown_ends_what_a_session_samples(serving: Serving) -> None:
    began = asyncio.Event()

    def script(request: Any) -> Reply:
        began.set()
        return Reply(text="4", delay_s=600.0)

    async with serving(script) as client:
        asking = asyncio.create_task(client.json(CHAT, ASK, status=503))
        await began.wait()
        endpoint: Endpoint = client.endpoint
        assert not await endpoint.drain(0.0)
        assert "closed" in (await asking)["error"]["message"]
        await client.json(CHAT, ASK, status=503)


@pytest.mark.parametrize("model", ["rocstar-raw", "rocstar-agent"])
async def test_chat_shows_the_logprobs_of_its_ids(serving: Serving, model: str) -> None:
    async with serving(scripted([call("2+2"), "4"])) as client:
        fields = {"model": model, "messages": [QUESTION], "logprobs": True, "top_logprobs": 0}
        answer = await client.json("/v1/chat/completions", {**fields, "return_token_ids": True})
        (choice,) = answer["choices"]
        rows = choice["logprobs"]["content"]
        assert [row["token"] for row in rows] == [f"token_id:{token}" for token in choice["token_ids"]]
        known = [row["logprob"] for row in rows if row["logprob"] is not None]
        assert (len(known) == len(rows)) == (model == "rocstar-raw")
        if model == "rocstar-raw":
            assert known == [logprob_of(token) for token in choice["token_ids"]]
            texts = await client.json("/v1/chat/completions", {**fields, "tools": [TOOL], "tool_choice": "required"})
            shown = "".join(row["token"] for row in texts["choices"][0]["logprobs"]["content"])
            assert shown == "4" + client.agent.chat.stop_text or call("2+2") in shown


@pytest.mark.parametrize(
    ("model", "replies", "stop", "shown"),
    [
        ("rocstar-raw", ["Größe, then"], [], "Größe, then"),
        ("rocstar-raw", ["Größe, then"], ["the"], "Größe,"),
        ("rocstar-agent", ["Größe" + call("2+2"), "It is 4"], [], "Größe\nIt is 4"),
    ],
)
async def test_a_stream_has_new_ids_and_their_logprobs_beside_each_delta(
    serving: Serving, tmp_path: Path, model: str, replies: list[str], stop: list[str], shown: str
) -> None:
    fields = {"model": model, "stop": stop, "n": 2, "return_token_ids": True, "logprobs": True}
    async with serving(scripted(replies), keeps=True) as client:
        chunks = [one for one in await client.stream(**fields) if isinstance(one, dict)]
        decode = client.agent.chat.decode
    assert ["prompt_token_ids" in chunk for chunk in chunks] == [True, *[False] * (len(chunks) - 1)]
    for k, record in enumerate(records(tmp_path / "served")):
        num_prompt, text = record["segments"][0]["end"], ""
        ids, rows = list[int](), list[Any]()
        for choice in (one for chunk in chunks for one in chunk["choices"] if one["index"] == k):
            ids += choice.get("token_ids", [])
            rows += (choice["logprobs"] or {"content": []})["content"]
            text += choice["delta"].get("content", "")
            assert len(rows) == len(ids) and decode(ids).startswith(text[:5])
        assert len(choice["token_ids"]) < len(ids), "the last chunk has what is new, not all"
        assert text == shown and chunks[0]["prompt_token_ids"] == record["ids"][:num_prompt]
        assert ids == record["ids"][num_prompt:]
        assert [row["token"] for row in rows] == [f"token_id:{token}" for token in ids]
        assert [row["logprob"] for row in rows] == record["logprobs"][num_prompt:]


async def test_ids_that_arrive_with_a_stop_sequence_and_follow_it_are_not_streamed(serving: Serving) -> None:
    """The engine reports all tokens at once, and ends the turn when the client has the first of them."""
    is_read = asyncio.Event()

    class Hasty(ScriptedPolicy):
        async def generate(self, ids: list[int], **options: Any) -> Any:
            sample = await super().generate(ids, **options)
            await is_read.wait()
            return sample

    fields = {"model": "rocstar-raw", "stop": ["b"], "return_token_ids": True}
    ids = []
    async with serving(Hasty(scripted(["abc"]), TOKENIZER)) as client, client.streaming(**fields) as response:
        async for chunk in events(response):
            for choice in chunk["choices"] if isinstance(chunk, dict) else ():
                ids += choice.get("token_ids", ())
                if choice["delta"].get("content"):
                    is_read.set()
    assert ids == TOKENIZER.encode("ab")


@pytest.mark.parametrize("path", ["/v1/completions", "/sessions/one/v1/completions"])
async def test_completions_have_the_ids_that_a_gateway_asks_for_as_in_chat(serving: Serving, path: str) -> None:
    """rLLM goes on from ids there, with the fields that it adds to chat completions."""
    body = {"model": "rocstar-raw", "prompt": [5, 6, 7], "add_special_tokens": False, "return_token_ids": True}
    async with serving(lambda request: "abc") as client:
        whole = await client.json(path, {**body, "logprobs": True})
        async with client.post(path, {**body, "logprobs": True, "stream": True}) as response:
            chunks = [chunk async for chunk in events(response) if isinstance(chunk, dict)]
        plain = await client.json(path, {**body, "logprobs": False})
        sampled = [*TOKENIZER.encode("abc"), client.agent.chat.stop_id]
        assert not client.notes
    assert plain["choices"][0]["logprobs"] is None and chunks[0]["choices"][0]["prompt_token_ids"] == [5, 6, 7]
    for choices in (whole["choices"], [chunk["choices"][0] for chunk in chunks]):
        assert [token for choice in choices for token in choice.get("token_ids", ())] == sampled
        columns = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        assert [value for one in columns for value in one["token_logprobs"]] == [logprob_of(t) for t in sampled]
    assert whole["choices"][0]["prompt_token_ids"] == [5, 6, 7]


async def test_fields_without_an_effect_are_noted_and_recorded(serving: Serving, tmp_path: Path) -> None:
    async with serving(lambda request: "4", keeps=True) as client:
        thinking = {**MESSAGES, "thinking": {"type": "adaptive"}, "metadata": None}
        for _ in range(2):
            await client.json("/sessions/one/v1/messages", thinking)
        assert len(client.notes) == 1 and "sends thinking, which nothing here reads" in client.notes[0]
    (record,) = records(tmp_path / "served")
    assert record["task"]["meta"]["ignored"] == {"thinking": 2}


@pytest.mark.parametrize(
    "written", ['Hi <tool_call>{"name": "calc", "argu', "Hi <tool_call>[]</tool_call> and " + call("1")]
)
async def test_a_malformed_call_for_the_client_is_text_once(serving: Serving, written: str) -> None:
    async with serving(scripted([written])) as client:
        fields = {"model": "rocstar-raw", "tools": [TOOL]}
        message = (await client.chat(**fields))["choices"][0]["message"]
        assert message == {"role": "assistant", "content": written}
        assert of_stream(await client.stream(**fields))["content"] == written
