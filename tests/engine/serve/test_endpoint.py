"""The endpoint over HTTP: responses, streams, refusals, stops and records."""

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.engine.chat.boundaries import TEMPLATES, bundled_templates
from rocstar.engine.inference.base import InferenceError
from rocstar.engine.rollout.rollout import run_trajectory
from rocstar.engine.serve.conversation_manager import ServeOptions
from rocstar.engine.serve.server import open_endpoint, serve_until_signal
from rocstar.engine.types import Origin, Task, TrajectoryKey
from rocstar.sandbox.http.guard import load_owners, reload_on_sighup
from rocstar.sandbox.http.listening import Address
from tests.fakes.scripted_policy import Reply, Request, ScriptedPolicy, logprob_of

from ...patience import PATIENCE_S
from .conftest import (
    QUESTION,
    TOKENIZER,
    Serving,
    SlowTool,
    call,
    events,
    make_agent,
    of_stream,
    opened,
    ready_tool,
    scripted,
    without_ids,
)

THINKS = ["<think>Add.</think>" + call("2+2"), "So <answer>4</answer>"]
RAW = {"model": "rocstar-raw", "messages": [QUESTION]}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


async def test_the_loop_runs_inside_and_is_told(serving: Serving) -> None:
    async with serving(scripted(THINKS)) as client:
        payload = await client.chat(seed=3)
    message = payload["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("So <answer>4</answer>", "Add.")
    use, answer = message["server_tool_events"]
    assert (use["name"], use["arguments"], use["id"]) == ("calc", {"code": "2+2"}, answer["id"])
    assert (answer["status"], answer["content"], answer["is_error"]) == ("ok", "4", False)
    assert payload["choices"][0]["finish_reason"] == "stop" and payload["rocstar"]["seed"] == 3


async def test_a_conversation_goes_on_by_its_tokens(serving: Serving) -> None:
    """From before a turn, and behind an end with a further question: the policy reads those very tokens, also
    where no tokenizer would have cut their text so."""
    async with serving(scripted(THINKS), keeps=True) as client:
        chat = client.agent.chat
        whole = await client.chat(return_token_ids=True, seed=3)
        choice = whole["choices"][0]
        ids = [*whole["prompt_token_ids"], *choice["token_ids"]]
        text = chat.decode(ids)
        assert text.count("<|im_start|>assistant") == 2 and text.endswith("<|im_end|>")
        begun = len(client.agent.inference.requests)
        prefix = {"model": "rocstar-agent", "prefix_token_ids": whole["prompt_token_ids"], "seed": 3}
        again = await client.json("/v1/chat/completions", prefix)
        body = client.agent.inference.requests[begun].ids
        assert list(body) == whole["prompt_token_ids"] and "token_ids" not in again["choices"][0]
        assert without_ids(again["choices"][0]["message"]) == without_ids(choice["message"])
        odd = [*ids[:-1], *TOKENIZER.encode("x"), *ids[-1:]]
        begun = len(client.agent.inference.requests)
        chunks = await client.stream(
            {"role": "user", "content": "And 3+3?"}, prefix_token_ids=odd, return_token_ids=True
        )
        body = list(client.agent.inference.requests[begun].ids)
        assert body == [*odd, *chat.user_suffix_ids("And 3+3?")]
        ends = [c for c in chunks if isinstance(c, dict) and "prompt_token_ids" in c]
        assert [c["prompt_token_ids"] for c in ends] == [body] and ends[0] is chunks[0]
        assert any("token_ids" in c["choices"][0] for c in chunks[:-1])
        cut = await client.chat({"role": "user", "content": "Well?"}, prefix_token_ids=ids[:-1], return_token_ids=True)
        assert cut["prompt_token_ids"][: len(ids)] == ids, "a turn that was cut is ended first"


async def test_usage_is_the_sum_of_the_records_segments(serving: Serving) -> None:
    async with serving(scripted(THINKS), keeps=True) as client:
        payload = await client.chat(n=2, stream=False)
        agent, usage = client.agent, payload["usage"]
    task = Task(id="t", source="s", question=QUESTION["content"], answer="")
    same = make_agent(scripted(THINKS), client.tool)
    key = TrajectoryKey(seed=0, step=0, task_id="t", sibling=0)
    direct = await run_trajectory(same, task, key)
    by_origin = {origin: sum(s.end - s.start for s in direct.segments if s.origin is origin) for origin in Origin}
    assert usage["prompt_tokens"] == by_origin[Origin.prompt]
    assert usage["completion_tokens"] == 2 * by_origin[Origin.policy]
    assert usage["tool_tokens"] == 2 * by_origin[Origin.tool] and usage["turns"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert agent.inference.load().used == 0  # everything was released


SPOKEN = st.lists(
    st.lists(
        st.sampled_from(["<think>", "</think>", "é🙂", "<", " \n", "word", "<tool_call>", call("1"), "STOP"]),
        max_size=6,
    ).map("".join),
    min_size=1,
    max_size=4,
)


@settings(max_examples=15)
@given(turns=SPOKEN, stops=st.sampled_from([None, ["STOP"], ["\n"]]))
def test_a_stream_says_what_is_said_at_once(turns: list[str], stops: list[str] | None) -> None:
    """The tokenizer's tokens are bytes: the stream is cut at every one."""
    script = scripted([*turns, "end", "end", "end", "end"])

    async def both() -> None:
        tool = ready_tool()
        async with opened(make_agent(script, tool), tool) as client:
            whole = await client.chat(stop=stops, seed=1, n=2)
            chunks = await client.stream(stop=stops, seed=1, n=2, stream_options={"include_usage": True})
        assert chunks[-1] == "data: [DONE]"
        for k, choice in enumerate(whole["choices"]):
            assert without_ids(of_stream(chunks, k)) == without_ids(choice["message"])
        ends = [c["choices"][0]["finish_reason"] for c in chunks[:-1] if c["choices"]]
        assert [end for end in ends if end] == [choice["finish_reason"] for choice in whole["choices"]]
        assert chunks[-2]["usage"] == whole["usage"]

    asyncio.run(both())


async def test_tokens_are_sent_as_they_come(serving: Serving) -> None:
    async with serving(scripted(["abc"])) as client:
        chunks = await client.stream()
    texts = [c["choices"][0]["delta"].get("content") for c in chunks[:-1]]
    assert texts == ["", "a", "b", "c", None]


async def test_a_stream_pings_while_a_tool_runs(serving: Serving) -> None:
    """A proxy with an idle limit sees bytes from the server as long as the tool takes."""
    tool, seen, num_pings = SlowTool(), [], 0
    async with serving(scripted(THINKS), tool=tool, ping_s=0.001) as client:
        async with client.streaming(seed=1) as response:
            async for payload in events(response):
                seen.append(payload)
                # A slow machine pings before the call, too.
                num_pings += payload == ": ping" and tool.began.is_set()
                if num_pings == 100:
                    tool.gate.set()
        whole = await client.chat(seed=1)
    assert num_pings >= 100 and seen[-1] == "data: [DONE]"
    assert without_ids(of_stream(seen)) == without_ids(whole["choices"][0]["message"])


async def test_requests_without_a_seed_are_independent(serving: Serving) -> None:
    async with serving(lambda request: str(request.seed)) as client:
        payload = [await client.chat() for _ in range(16)]
        assert len({one["choices"][0]["message"]["content"] for one in payload}) == 16
        many = await client.chat(n=16, seed=5)
        again = await client.chat(n=16, seed=5)
    texts = [choice["message"]["content"] for choice in many["choices"]]
    assert len(set(texts)) == 16
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    assert sum("repeats a request with seed 5" in note for note in client.notes) == 1


async def test_limits_are_of_all_turns_together(serving: Serving) -> None:
    async with serving(scripted(["12345" + call("1"), "67890" * 30])) as client:
        payload = await client.chat(max_tokens=160, temperature=0.25)
        assert payload["choices"][0]["finish_reason"] == "length"
        usage = payload["usage"]
        assert usage["completion_tokens"] + usage["tool_tokens"] == 160
        assert {r.sampling.temperature for r in client.agent.inference.requests} == {0.25}


async def test_an_answer_has_room_in_the_model(serving: Serving) -> None:
    async with serving(lambda request: Reply(text="a", stops=False), max_context=200) as client:
        payload = await client.chat()
        assert payload["usage"]["total_tokens"] == 200 and payload["choices"][0]["finish_reason"] == "length"
        refused = await client.chat({"role": "user", "content": "long " * 50}, status=400)
    assert refused["error"]["code"] == "context_length_exceeded" and refused["error"]["param"] == "messages"


async def test_a_stop_text_ends_the_policy_and_not_its_tool(serving: Serving) -> None:
    replies = [call("1"), "one END two"]
    async with serving(scripted(replies), tool=ready_tool("END"), keeps=True) as client:
        payload = await client.chat(stop=["END", "never"])
        requests = client.agent.inference.requests
    choice = payload["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "stop")
    assert choice["message"]["server_tool_events"][1]["content"] == "END"
    # What was written behind the stop text is in no record.
    written = payload["usage"]["completion_tokens"]
    assert written == len(call("1")) + 1 + len("one END") and len(requests) == 2


async def test_a_known_answer_is_judged(serving: Serving) -> None:
    async with serving(scripted(THINKS)) as client:
        payload = await client.chat(metadata={"answer": "4", "task_id": "t"}, n=2)
        assert payload["rocstar"]["rewards"] == [1.0, 1.0] and payload["rocstar"]["task_id"] == "t"
        assert "rewards" not in (await client.chat())["rocstar"]
        apart = await client.chat(rocstar={"answer": "4", "task_id": "t"}, metadata={"task_id": "u"}, n=2)
        assert {**apart["rocstar"], "seed": 0} == {**payload["rocstar"], "seed": 0}
        refused = await client.chat(rocstar={"task": "t"}, status=400)
        assert refused["error"]["param"] == "rocstar.task"


async def test_the_raw_face_gives_the_calls_to_the_client(serving: Serving) -> None:
    say = 'I add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    async with serving(scripted([say])) as client:
        payload = await client.json("/v1/chat/completions", {**RAW, "tools": [ADD]})
        streamed = await client.stream(model="rocstar-raw", tools=[ADD])
        called = {**payload["choices"][0]["message"], "content": None}
        results = [QUESTION, called, {"role": "tool", "tool_call_id": "any", "content": "3"}]
        await client.json("/v1/chat/completions", {**RAW, "messages": results, "tools": [ADD]})
        prompt = client.agent.chat.decode(client.agent.inference.requests[-1].ids)
    choice = payload["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "I add."
    (made,) = choice["message"]["tool_calls"]
    assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == ("add", {"a": 1})
    deltas = [c["choices"][0]["delta"].get("tool_calls") for c in streamed[:-1]]
    ((said,),) = (d for d in deltas if d)
    assert said == {"index": 0, **made, "id": said["id"]} and said["id"] != made["id"]
    assert "Tools: add" in prompt and "<tool_response>\n3\n</tool_response>" in prompt
    assert not client.tool.noted


async def test_completions_continue_texts_and_ids(serving: Serving) -> None:
    async with serving(lambda request: Reply(text=f"<think>{len(request.ids)}")) as client:
        body = {"model": "rocstar-raw", "prompt": ["ab", "abc"], "echo": True, "n": 2}
        payload = await client.json("/v1/completions", body)
        ids = {"model": "rocstar-raw", "prompt": [5, 6, 7], "logprobs": 1, "max_tokens": 3, "stream": False}
        scored = await client.json("/v1/completions", ids)
        async with client.post("/v1/completions", {**ids, "logprobs": None, "stream": True}) as response:
            chunks = [chunk async for chunk in events(response)]
    assert [c["text"] for c in payload["choices"]] == ["ab<think>2"] * 2 + ["abc<think>3"] * 2
    assert [c["index"] for c in payload["choices"]] == [0, 1, 2, 3]
    (choice,) = scored["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("<th", "length")
    columns = choice["logprobs"]
    assert columns["tokens"] == ["<", "t", "h"] and columns["text_offset"] == [0, 1, 2]
    assert all(value < 0 for value in columns["token_logprobs"])
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == "<th"


AGENT = {"model": "rocstar-agent", "messages": [QUESTION]}
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
BAD_CHATS: list[tuple[Any, str | None]] = [
    ({"messages": [QUESTION]}, "model"),
    ({**AGENT, "messages": []}, "messages"),
    ({"model": "rocstar-agent", "prefix_token_ids": []}, "prefix_token_ids"),
    ({"model": "rocstar-agent", "prefix_token_ids": [-1]}, "prefix_token_ids.0"),
    ({**RAW, "prefix_token_ids": [1]}, "prefix_token_ids"),
    ({**AGENT, "messages": [QUESTION, QUESTION], "prefix_token_ids": [1]}, "messages"),
    ({**RAW, "temperature": -1}, "temperature"),
    ({**RAW, "n": 0}, "n"),
    ({**RAW, "top_p": 0.9}, "top_p"),
    ({**RAW, "stop": [""]}, "stop"),
    ({**RAW, "seed": "x"}, "seed"),
    ({**RAW, "max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
    ({**RAW, "response_format": {"type": "json_object"}}, "response_format"),
    ({**RAW, "tools": [{"type": "x"}]}, "tools.0"),
    ({**AGENT, "tools": [ADD]}, "tools"),
    ({**RAW, "messages": [{"role": "user"}]}, "messages.0.content"),
    ({**RAW, "messages": [IMAGE]}, "messages.0.content.0.type"),
    ({**AGENT, "messages": [QUESTION, {"role": "assistant", "content": "a"}]}, "messages.1.role"),
    (b"{", None),
    (b"[1]", None),
]
BAD: list[tuple[str, Any, int, str | None]] = [
    *(("/v1/chat/completions", body, 400, param) for body, param in BAD_CHATS),
    ("/v1/chat/completions", {**RAW, "model": "gpt"}, 404, "model"),
    ("/v1/completions", {"model": "rocstar-raw", "prompt": []}, 400, "prompt"),
    ("/v1/completions", {"model": "rocstar-raw", "prompt": [-1]}, 400, "prompt.0"),
    ("/v1/completions", {"model": "rocstar-raw", "prompt": ["a", "b"], "stream": True}, 400, "stream"),
    ("/tokenize", {}, 400, "prompt"),
    ("/v1/feedback", {"id": "chatcmpl-1-ab", "thumb": "sideways"}, 400, "thumb"),
    ("/v1/feedback", {"id": "chatcmpl-1-ab", "thumb": "up"}, 404, "id"),
    ("/nowhere", {}, 404, None),
]


async def test_what_is_wrong_is_named(serving: Serving) -> None:
    async with serving(scripted(["4"]), keeps=True) as client:
        for path, body, status, param in BAD:
            payload = await client.json(path, body, status=status)
            assert payload["error"]["param"] == param, (body, payload)
            assert payload["error"]["message"] and payload["error"]["type"]
        assert not client.agent.inference.requests
        unknown = {"model": "rocstar-raw", "prompt": [1 << 21]}
        assert (await client.json("/v1/completions", unknown, status=400))["error"]["param"] == "prompt"
        known = {"user": "u", "top_p": 1, "response_format": {"type": "text"}, "colour": "red"}
        await client.chat(**known)
        await client.chat(**known)
    assert [note for note in client.notes if "colour" in note and "user" not in note] == client.notes[:1]


class Scoreless(ScriptedPolicy):
    """An engine that tells nothing of prompts."""

    score = None  # type: ignore[assignment]


async def test_a_prompt_has_its_log_probs_where_the_engine_tells_them(serving: Serving) -> None:
    ids = [int(token) for token in TOKENIZER.encode("abcd")]
    body = {"model": "rocstar-raw", "prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "n": 2}
    async with serving(scripted(["xyz"])) as client:
        payload = await client.json("/v1/completions", body)
        usage = await client.json("/v1/completions", {**body, "prompt": "abcd", "temperature": 0})
    tokens = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    assert payload["usage"] == usage["usage"] == tokens
    for choice in payload["choices"]:
        columns = choice["logprobs"]
        assert choice["text"] == "abcdx" and columns["tokens"] == list("abcdx")
        assert columns["text_offset"] == [0, 1, 2, 3, 4] and columns["token_logprobs"][0] is None
        written = [*ids, *TOKENIZER.encode("x")]
        assert columns["token_logprobs"][1:] == [logprob_of(token) for token in written[1:]]
        for token, text, tops in zip(written[1:4], "bcd", columns["top_logprobs"][1:], strict=False):
            likelier = {TOKENIZER.decode([1]): logprob_of(1)} if token % 3 == 0 else {}
            assert tops == {**likelier, text: logprob_of(token)}
    async with serving(Scoreless(scripted(["xyz"]), TOKENIZER)) as client:
        refused = await client.json("/v1/completions", body, status=400)
        await client.json("/v1/completions", {**body, "echo": False})
    assert refused["error"]["param"] == "echo"


async def test_an_engine_that_wrote_otherwise_than_it_told_gives_no_answer(serving: Serving) -> None:
    """A replica was lost in the middle of a turn, and the next one drew other tokens."""

    class Fickle(ScriptedPolicy):
        async def generate(self, ids: list[int], *, request_id: str, **rest: Any) -> Any:
            if (heard := self._hearing.get(request_id)) is not None:
                heard(0, TOKENIZER.encode("z")[0], -1.0)
            return await super().generate(ids, request_id=request_id, **rest)

    async with serving(Fickle(scripted(["abc"]), TOKENIZER)) as client:
        chunks = await client.stream()
        assert (await client.chat())["choices"][0]["message"]["content"] == "abc"  # nothing was told before
    assert chunks[-1]["error"]["code"] == "told_otherwise"


@pytest.mark.parametrize("is_hurried", [False, True])
async def test_a_signal_drains_the_server_and_a_second_stops_the_rest(serving: Serving, is_hurried: bool) -> None:
    tool, noted = SlowTool(), asyncio.Event()
    async with serving(scripted(THINKS), tool=tool) as client:
        first = asyncio.ensure_future(client.chat(status=503 if is_hurried else 200))
        await tool.began.wait()
        ending = asyncio.ensure_future(serve_until_signal(client.endpoint, 60.0, lambda line: noted.set()))
        await asyncio.sleep(0)  # it listens
        os.kill(os.getpid(), signal.SIGTERM)
        await noted.wait()
        assert (await client.chat(status=503))["error"]["code"] == "closing" and not ending.done()
        await client.get("/health", status=503)
        await client.get("/readyz", status=503)
        await client.get("/healthz")
        if is_hurried:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            tool.gate.set()
        await ending
        assert await client.conversations.drain(0.0) != is_hurried  # as `open_endpoint` does next
        await first
    assert tool.noted == ["cancelled" if is_hurried else "answered"]


async def test_more_than_there_is_room_for_is_turned_away(serving: Serving) -> None:
    tool = SlowTool()
    async with serving(scripted(THINKS), tool=tool, max_choices=2) as client:
        first = asyncio.ensure_future(client.chat(n=2))
        await tool.began.wait()
        async with client.post("/v1/chat/completions", {**RAW}) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
        tool.gate.set()
        assert len((await first)["choices"]) == 2


async def test_who_gets_no_place_in_time_is_told(serving: Serving) -> None:
    policy, tool = ScriptedPolicy(scripted(THINKS), TOKENIZER, max_running=1), SlowTool()
    async with serving(policy, tool=tool, queue_timeout_s=0.01) as client:
        first = asyncio.ensure_future(client.chat())
        await tool.began.wait()
        assert (await client.chat(status=503))["error"]["code"] == "queue_timeout"
        tool.gate.set()
        await first


async def test_a_client_that_leaves_ends_the_tool_and_frees_the_engine(serving: Serving) -> None:
    tool = SlowTool()
    async with serving(scripted(THINKS), tool=tool, keeps=True) as client:
        asking = asyncio.ensure_future(client.chat())
        await tool.began.wait()
        assert client.conversations.in_flight == 1
        asking.cancel()
        await client.conversations._idle.wait()
        assert tool.noted == ["cancelled"] and client.agent.inference.released
        assert client.conversations.metrics.ends[("tool_failed",)] == 1
        assert client.agent.inference.load().used == 0


async def test_a_client_that_leaves_ends_the_generation(serving: Serving) -> None:
    began = asyncio.Event()

    def script(request: Request) -> Reply:
        began.set()
        return Reply(text="x", delay_s=3600.0)

    async with serving(script) as client:
        asking = asyncio.ensure_future(client.stream())
        await began.wait()
        asking.cancel()
        await client.conversations._idle.wait()
        metrics = client.conversations.metrics
        assert metrics.ends[("aborted",)] == metrics.disconnects == 1


async def test_a_client_that_is_gone_is_no_mistake_of_the_server(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[bytes] = []
    write = aiohttp.web.StreamResponse.write

    async def gone(response: aiohttp.web.StreamResponse, data: bytes) -> None:
        if written:
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        written.append(data)
        await write(response, data)

    monkeypatch.setattr(aiohttp.web.StreamResponse, "write", gone)
    async with serving(scripted(THINKS), keeps=True) as client:
        with pytest.raises(aiohttp.ClientError):
            await client.stream()
        await client.conversations._idle.wait()
        assert client.conversations.metrics.disconnects == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_failure_of_ours_is_no_answer(serving: Serving) -> None:
    lost = Reply(error=InferenceError("replica_lost", "gone", retryable=True))
    async with serving(scripted([lost])) as client:
        assert (await client.chat(status=503))["error"]["code"] == "replica_lost"
    async with serving(scripted([call("1"), lost])) as client:
        chunks = await client.stream()
        assert chunks[-1]["error"]["code"] == "replica_lost"  # and no [DONE]
    late = Reply(text="4", delay_s=3600.0)
    async with serving(scripted([late]), limits={"timeout_s": 0.01}) as client:
        assert (await client.chat(status=504))["error"]["code"] == "deadline"


async def test_who_may_ask(serving: Serving) -> None:
    token = "a-token-of-some-length"
    async with serving(scripted(["4"]), token=token) as client:
        refused = await client.json("/v1/chat/completions", RAW, status=401)
        assert refused["error"]["code"] == "invalid_api_key"
        await client.get("/v1/models", status=401)
        await client.get("/health")
        bearer = {"Authorization": f"Bearer {token}", "Host": "evil.example"}
        await client.json("/v1/chat/completions", RAW, headers=bearer)
    async with serving(scripted(["4"])) as client:
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            await client.json("/v1/chat/completions", RAW, status=403, headers=headers)
        await client.json("/v1/chat/completions", RAW, headers={"Host": "localhost:80"})


async def test_tokens_are_read_again_and_the_log_names_owners(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, path, log = short_path / "tokens", short_path / "socket", logging.getLogger("access")
    first, second = "first-0123456789abcdef", "second-0123456789abcdef"
    file.write_text(f"ann {first}\n")
    owners, notes = load_owners(str(file), {}), asyncio.Queue[str]()
    address = Address(hosts=("127.0.0.1",), port=0, unix=str(path))
    headers = {"X-Forwarded-For": "198.51.100.7"}
    caplog.set_level(logging.INFO, "access")
    async with open_endpoint(
        make_agent(scripted(["4"]), SlowTool()), ServeOptions(owners=owners), address=address, access=log
    ) as endpoint:
        assert endpoint.url.startswith("http://127.0.0.1:")
        connector = aiohttp.UnixConnector(str(path))
        with reload_on_sighup(owners, notes.put_nowait):
            async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
                for text, token, status in (
                    (f"ann {second}\n", second, 200),
                    (f"ann {second}\n", first, 401),
                    ("ann short\n", second, 200),
                ):
                    file.write_text(text)
                    os.kill(os.getpid(), signal.SIGUSR1)
                    os.kill(os.getpid(), signal.SIGHUP)
                    await asyncio.wait_for(notes.get(), PATIENCE_S)
                    bearer = {"Authorization": f"Bearer {token}"}
                    async with session.get("http://serve/v1/models", headers=bearer) as answer:
                        assert answer.status == status
                async with session.get("http://serve/healthz") as answer:
                    assert answer.status == 200
    lines = [record.getMessage() for record in caplog.records if record.name == "access"]
    assert [line.partition(" HTTP/")[0] for line in lines] == [
        '198.51.100.7 ann "GET /v1/models',
        '198.51.100.7 - "GET /v1/models',
        '198.51.100.7 ann "GET /v1/models',
        '198.51.100.7 - "GET /healthz',
    ]


async def test_what_else_is_asked(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client:
        models = json.loads(await client.get("/v1/models"))
        assert [model["id"] for model in models["data"]] == ["rocstar-agent", "rocstar-raw"]
        assert json.loads(await client.get("/v1/models/rocstar-raw"))["max_model_len"] == 4000
        await client.get("/v1/models/gpt", status=404)
        text = await client.json("/tokenize", {"prompt": "ab"})
        prompt = await client.json("/tokenize", {"messages": [QUESTION]})
        assert await client.json("/detokenize", {"tokens": text["tokens"]}) == {"prompt": "ab"}
        assert text["count"] == 2 and prompt["tokens"] == client.agent.chat.prompt_ids("2+2?")
        assert json.loads(await client.get("/tokenizer_info"))["eos_token"] == "<|endoftext|>"
        await client.chat()
        metrics = (await client.get("/metrics")).decode()
    assert 'rocstar_serve_choices_ended_total{reason="answered"} 1.0' in metrics
    assert f'rocstar_serve_tokens_total{{origin="prompt"}} {float(prompt["count"])}' in metrics


@pytest.mark.parametrize("template", ["rstar2", "qwen3"])
async def test_other_templates(serving: Serving, template: str) -> None:
    replies = ["I see.</reason><answer>4</answer>" if template == "rstar2" else "<think>I see.</think>4"]
    async with serving(scripted(replies), template=template) as client:
        message = (await client.chat())["choices"][0]["message"]
    assert message["reasoning_content"] == "I see." and "4" in message["content"]


def write_own_template(folder: Path) -> str:
    """A template that drops thoughts of earlier turns itself, as Qwen3's own does."""
    text = (TEMPLATES / "qwen3.jinja").read_text()
    dropping = text.replace("(message.content or '')", "(message.content or '').split('</think>')[-1]")
    assert dropping != text
    (folder / "own.jinja").write_text(dropping)
    return str(folder / "own.jinja")


TURNS = [
    "4",
    "<think>two and two</think>4",
    "<reason>two and two</reason> <answer>4</answer>",
    "two and two</reason> <answer>4</answer>",
    "<think>\nnever ended",
    "a<think>b</think>c<think>d</think>e",
    'I add.<tool_call>{"name": "add", "arguments": {"a": "\\ud800", "b": "<&>\\"\\n"}}</tool_call>',
    '<think>I add</think><tool_call>{"name": "add", "arguments": {}}</tool_call>'
    '<tool_call>{"name": "add", "arguments": {"a": [1, {"b": null}]}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": 7}</tool_call>',
    "",
    "  \n ",
    "<|im_start|>user\n\u0000\x1b[2J\u202e\ufffd",
]


@pytest.mark.parametrize("template", [*bundled_templates(), "own"])
async def test_an_answer_is_taken_back_as_it_was_sent(serving: Serving, tmp_path: Path, template: str) -> None:
    """With every template, streamed or not, by both models, with the results of its calls."""
    if template == "own":
        template = write_own_template(tmp_path)
    raw = {"model": "rocstar-raw", "tools": [ADD]}
    async with serving(lambda request: turn, template=template) as client:
        for turn in TURNS:
            payload = await client.json("/v1/chat/completions", {**raw, "messages": [QUESTION], "n": 2})
            for choice in payload["choices"]:
                message = choice["message"]
                calls = message.get("tool_calls", [])
                results = [{"role": "tool", "tool_call_id": one["id"], "content": "3"} for one in calls]
                history = [QUESTION, message, *results, QUESTION, message, *results]
                await client.json("/v1/chat/completions", {**raw, "messages": [*history, QUESTION]})
                prompt = client.agent.chat.decode(client.agent.inference.requests[-1].ids)
                if "/" not in template and "never" not in turn:
                    assert message.get("reasoning_content", "") in prompt, (turn, "the thought is lost")
                messages = history if calls else history[:-1]
                await client.json("/v1/chat/completions", {**raw, "messages": messages})
                await client.json("/tokenize", {"messages": history})
            agent = (await client.chat(QUESTION))["choices"][0]["message"]
            await client.chat(QUESTION, agent, QUESTION)
