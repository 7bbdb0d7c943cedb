"""Clients of every dialect that change their history as real agents do, over a policy that logs what it sampled.

    python -m tests.engine.gateway.fuzzed_clients --turns 10000

A client keeps the items of its dialect and sends them again: with the arguments of calls re-serialised, without
the reasoning, with other spaces at the ends of texts. It retries requests whose answer was cut, goes on from an
earlier turn, compacts its history, and starts sub-agents.
"""

import argparse
import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, count
from random import Random
from typing import Any

import aiohttp

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.gateway.endpoint import Gateway, open_gateway
from rocstar.engine.gateway.graph import SessionColumns
from rocstar.engine.gateway.session import AgentSession, Sessions
from rocstar.engine.gateway.stream_parser import thought_tags
from rocstar.engine.inference.base import Generation, Sampling
from rocstar.engine.rollout.rollout import Agent, RolloutLimits
from rocstar.engine.tools.box import Dispatcher
from rocstar.engine.types import Attempt, Origin, Outcome, TrajectoryKey
from tests.engine.serve.conftest import LLAMA
from tests.fakes.scripted_policy import ByteTokenizer, Reply, Script, ScriptedPolicy
from tests.fakes.scripted_policy import Request as PolicyRequest

Item = dict[str, Any]
STOP = "so"
FUNCTIONS = {
    "add": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    "run": {"type": "object", "properties": {"code": {"type": "string"}, "options": {"type": "object"}}},
}


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, without comments, pings and the end mark."""
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return [event for event in map(json.loads, lines) if event.get("type") != "ping"]


def reserialised(arguments: str, rng: Random) -> str:
    """The arguments as another JSON writer prints them: other spaces, order, escapes and whole numbers."""
    value = json.loads(
        arguments, parse_float=lambda text: int(float(text)) if float(text).is_integer() else float(text)
    )
    if rng.random() < 0.5:
        value = dict(sorted(value.items(), reverse=True))
    return json.dumps(value, separators=rng.choice([(",", ":"), (", ", ": ")]), ensure_ascii=rng.random() < 0.5)


def spaced(text: str, rng: Random) -> str:
    return rng.choice(["", " ", "\n"]) + text.strip() + rng.choice(["", "\n\n"])


class ChatClient:
    """OpenAI's chat completions."""

    route = "/v1/chat/completions"
    stop_field = "stop"

    def body(self, system: str, functions: Sequence[str], items: Sequence[Item]) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": n, "parameters": FUNCTIONS[n]}} for n in functions]
        head = [{"role": "system", "content": system}] if system else []
        return {"messages": [*head, *items], "max_completion_tokens": 400, **({"tools": tools} if tools else {})}

    def user(self, text: str, rng: Random) -> Item:
        return {"role": "user", "content": rng.choice([text, [{"type": "text", "text": text}]])}

    def results(self, results: Sequence[tuple[str, str]]) -> list[Item]:
        return [{"role": "tool", "tool_call_id": call, "content": text} for call, text in results]

    def turn(self, answer: Mapping[str, Any]) -> tuple[list[Item], list[str]]:
        """The items of an answer, and the ids of its calls."""
        message = dict(answer["choices"][0]["message"])
        return [message], [call["id"] for call in message.get("tool_calls") or ()]

    def whole(self, stream: bytes) -> dict[str, Any]:
        """The answer of a stream."""
        message: Item = {"role": "assistant", "content": ""}
        for event in events_of(stream):
            for choice in event["choices"]:
                delta = choice["delta"]
                for name in ("content", "reasoning_content"):
                    if delta.get(name):
                        message[name] = message.get(name, "") + delta[name]
                for call in delta.get("tool_calls") or ():
                    message.setdefault("tool_calls", []).append({k: v for k, v in call.items() if k != "index"})
        return {"choices": [{"message": message}]}

    def changed(self, item: Item, rng: Random) -> Item:
        """The item as the client sends it again."""
        item = deepcopy(item)
        for call in item.get("tool_calls") or ():
            call["function"]["arguments"] = reserialised(call["function"]["arguments"], rng)
            call["id"] = f"call_{rng.random()}" if rng.random() < 0.1 else call["id"]
        if item["role"] == "assistant":
            if rng.random() < 0.5:
                item.pop("reasoning_content", None)
            item["content"] = None if not item["content"] else spaced(item["content"], rng)
        return item


class AnthropicClient(ChatClient):
    """Anthropic's messages."""

    route = "/v1/messages"
    stop_field = "stop_sequences"

    def body(self, system: str, functions: Sequence[str], items: Sequence[Item]) -> dict[str, Any]:
        tools = [{"name": name, "input_schema": FUNCTIONS[name]} for name in functions]
        messages = deepcopy([*items])
        if isinstance(messages[-1]["content"], list):  # the mark moves to the newest block
            messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        head = {"system": [{"type": "text", "text": system}]} if system else {}
        return {**head, "messages": messages, "max_tokens": 400, "tools": tools, "thinking": {"type": "adaptive"}}

    def results(self, results: Sequence[tuple[str, str]]) -> list[Item]:
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in results]
        return [{"role": "user", "content": blocks}]

    def turn(self, answer: Mapping[str, Any]) -> tuple[list[Item], list[str]]:
        calls = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        return [{"role": "assistant", "content": answer["content"]}], calls

    def whole(self, stream: bytes) -> dict[str, Any]:
        blocks: list[Item] = []
        for event in events_of(stream):
            if event["type"] == "content_block_start":
                blocks.append(dict(event["content_block"]))
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                if "partial_json" in delta:
                    blocks[-1]["input"] = json.loads(delta["partial_json"])
                for name in ("text", "thinking", "signature"):
                    blocks[-1][name] = (
                        blocks[-1].get(name, "") + delta[name] if name in delta else blocks[-1].get(name, "")
                    )
        return {
            "content": [{k: v for k, v in block.items() if v != "" or k in ("text", "thinking")} for block in blocks]
        }

    def changed(self, item: Item, rng: Random) -> Item:
        item = deepcopy(item)
        if item["role"] != "assistant":
            return item
        if rng.random() < 0.5:
            item["content"] = [block for block in item["content"] if block["type"] != "thinking"]
        for block in item["content"]:
            if block["type"] == "tool_use":
                block["input"] = json.loads(reserialised(json.dumps(block["input"]), rng))
            if block["type"] == "text":
                block["text"] = spaced(block["text"], rng)
        return item


class ResponsesClient(ChatClient):
    """OpenAI's Responses."""

    route = "/v1/responses"
    stop_field = ""

    def body(self, system: str, functions: Sequence[str], items: Sequence[Item]) -> dict[str, Any]:
        tools = [{"type": "function", "name": name, "parameters": FUNCTIONS[name]} for name in functions]
        return {"instructions": system, "input": [*items], "tools": tools, "max_output_tokens": 400, "store": False}

    def user(self, text: str, rng: Random) -> Item:
        return {"role": "user", "content": rng.choice([text, [{"type": "input_text", "text": text}]])}

    def results(self, results: Sequence[tuple[str, str]]) -> list[Item]:
        return [{"type": "function_call_output", "call_id": call, "output": text} for call, text in results]

    def turn(self, answer: Mapping[str, Any]) -> tuple[list[Item], list[str]]:
        return answer["output"], [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]

    def whole(self, stream: bytes) -> dict[str, Any]:
        return dict(events_of(stream)[-1]["response"])

    def changed(self, item: Item, rng: Random) -> Item:
        item = deepcopy(item)
        if item.get("type") == "function_call":
            item["arguments"] = reserialised(item["arguments"], rng)
        elif item.get("type") == "message":
            item["content"][0]["text"] = spaced(item["content"][0]["text"], rng)
        elif item.get("type") == "reasoning" and rng.random() < 0.5:
            item = {"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]}
        return item


class GenerateClient(ChatClient):
    """Token ids in and out, at /inference/v1/generate."""

    route = "/inference/v1/generate"

    def body(self, system: str, functions: Sequence[str], items: Sequence[Item]) -> dict[str, Any]:
        ids = [*system.encode(), *(token for item in items for token in item["ids"])]
        return {"token_ids": ids, "sampling_params": {"max_tokens": 400, "top_p": 1.0, "logprobs": 1}}

    def user(self, text: str, rng: Random) -> Item:
        return {"role": "user", "ids": [*text.encode()]}

    def results(self, results: Sequence[tuple[str, str]]) -> list[Item]:
        return [self.user(text, Random(0)) for _, text in results]

    def turn(self, answer: Mapping[str, Any]) -> tuple[list[Item], list[str]]:
        return [{"role": "assistant", "ids": answer["choices"][0]["token_ids"]}], []

    def whole(self, stream: bytes) -> dict[str, Any]:
        return events_of(stream)[0]

    def changed(self, item: Item, rng: Random) -> Item:
        return item


class CompletionsClient(GenerateClient):
    """Token ids in and out, at OpenAI's completions."""

    route = "/v1/completions"

    def body(self, system: str, functions: Sequence[str], items: Sequence[Item]) -> dict[str, Any]:
        ids = super().body(system, functions, items)["token_ids"]
        return {"prompt": ids, "max_tokens": 400, "return_token_ids": True}

    def whole(self, stream: bytes) -> dict[str, Any]:
        ids = [event["choices"][0].get("token_ids") or [] for event in events_of(stream)]
        return {"choices": [{"token_ids": [*chain.from_iterable(ids)]}]}


CLIENTS: Sequence[type[ChatClient]] = (ChatClient, AnthropicClient, ResponsesClient, GenerateClient, CompletionsClient)


class LoggedPolicy(ScriptedPolicy):
    """A scripted policy that logs what it sampled. Each token has a log-prob of its own, and the weights change
    while it samples."""

    def __init__(self, chat: ChatFormat, script: Script) -> None:
        super().__init__(script, chat.tokenizer, token_s=0.0)  # type: ignore[arg-type]
        self.log: list[tuple[tuple[int, ...], Generation]] = []
        """The prompt's ids and the sample of each request."""
        self._num_tokens = 0
        self.decode = chat.decode

    async def generate(self, ids: list[int], **options: Any) -> Generation:
        asyncio.get_running_loop().call_later(0.0005, self._update_weights)
        sample = await super().generate(ids, **options)
        start, self._num_tokens = self._num_tokens, self._num_tokens + len(sample.ids)
        logprobs = tuple(-(1 + k % 99_991) / 1e4 for k in range(start, self._num_tokens))
        sample = replace(sample, logprobs=logprobs)
        self.log.append((tuple(ids), sample))
        return sample

    def _update_weights(self) -> None:
        self.version += 1


def random_turns(chat: ChatFormat) -> Callable[[PolicyRequest], Reply]:
    """Return a script with thoughts, texts, calls, and bytes of no character."""
    begin, end = thought_tags(chat.boundaries.opening)
    opened = "" if begin in chat.boundaries.opening else begin

    def turn(request: PolicyRequest) -> Reply:
        """Depends on the prompt and its repetition alone."""
        rng = Random(hashlib.sha256(repr((request.ids, request.turn)).encode()).digest())
        thought = rng.choice(["", f"{opened}Let me see.\n{end}\n\n"])
        text = rng.choice(["", "Fine.", " I think \n so. ", "Größe 漢字 🙂", "a<b and {c}", "<answer>5</answer>"])
        calls = "".join(f"\n<tool_call>\n{_call(rng)}\n</tool_call>" for _ in range(rng.choice([0, 1, 1, 1, 2])))
        if chat.form.calls == "llama" and calls:
            return Reply(text=_call(rng, arguments="parameters"))
        match rng.randrange(20):
            case 0:
                return Reply(ids=tuple(rng.randrange(200) for _ in range(20)))
            case 1:
                return Reply(text=f"{thought}{text}xyz", stops=False)
        return Reply(text=thought + text + calls)

    return turn


def _call(rng: Random, arguments: str = "arguments") -> str:
    """A call as a policy writes it; one in twenty is not well-formed."""
    values = {
        "a": rng.choice([1, 1.0, -0.5, 1e3, 12345678901, True, None, [1.0, {"z": 2, "b": []}]]),
        "b": rng.choice(["ü", 'quote " and \\ slash', "line\nline", "", "🙂"]),
    }
    name = rng.choice(sorted(FUNCTIONS))
    text = json.dumps({"name": name, arguments: values}, ensure_ascii=rng.random() < 0.5)
    return text[:-3] if rng.random() < 0.05 else text


Send = Callable[..., Awaitable[bytes | None]]
"""(route, body, is_cut): the answer, or None if the connection broke before its last byte."""


@dataclass(slots=True, kw_only=True)
class FuzzedAgent:
    """One conversation of a client.

    Attributes:
        only_appends: the history only grows, as seen by the gateway's canonical form.
        num_requests: that were sent, with retries.
    """

    client: ChatClient
    send: Send
    rng: Random
    only_appends: bool
    num_requests: int = 0

    async def run(self, turns: int, system: str = "Be brief.", functions: Sequence[str] = ("add", "run")) -> None:
        """Ask for so many turns."""
        rng, client = self.rng, self.client
        items: list[Item] = [client.user(f"Question {rng.random()}", rng)]
        for _ in range(turns):
            answer = await self._answer(client.body(system, functions, [client.changed(item, rng) for item in items]))
            made, calls = client.turn(answer)
            items += made
            if not self.only_appends and rng.random() < 0.3:
                items, system, functions = await self._rewritten(items, system, functions)
                continue
            items += client.results([(call, rng.choice(["5", "", "Error: no", "ö\n"])) for call in calls])
            if not calls or rng.random() < 0.2:
                items.append(client.user(f"Go on. {rng.random()}", rng))

    async def _rewritten(
        self, items: list[Item], system: str, functions: Sequence[str]
    ) -> tuple[list[Item], str, Sequence[str]]:
        """Change the history as harnesses do."""
        rng, client = self.rng, self.client
        match rng.choice(["fork", "compact", "subagent", "system", "functions", "edit"]):
            case "fork":
                users = [k for k, item in enumerate(items) if item.get("role") == "user"]
                items = [*items[: rng.choice(users)], client.user(f"Rather {rng.random()}", rng)]
            case "compact":
                items = [client.user(f"So far: {rng.random()}", rng)]
            case "subagent":
                helpers = [self.run(2, system="You are a helper.", functions=("add",)) for _ in range(2)]
                await asyncio.gather(*helpers)
                items = [*items, client.user("Again.", rng)]
            case "system":
                system = f"Be brief. {rng.random()}"
                items = [*items, client.user("Again.", rng)]
            case "functions":
                functions = ("run",) if "add" in functions else ("add", "run")
                items = [*items, client.user("Again.", rng)]
            case "edit":
                k = rng.randrange(len(items))
                text = (
                    json.dumps(items[k]).replace("Question", "Problem").replace("Fine", "Good").replace("see", "look")
                )
                items = [*items[:k], json.loads(text), *items[k + 1 :], client.user("Again.", rng)]
        return items, system, functions

    async def _answer(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, with retries and repetitions."""
        rng, is_streamed = self.rng, self.rng.random() < 0.5
        stops = {self.client.stop_field: [STOP]} if self.client.stop_field and rng.random() < 0.2 else {}
        body = json.dumps({"model": "m", "stream": is_streamed, **fields, **stops}).encode()

        async def sent(*, is_cut: bool = False) -> bytes | None:
            self.num_requests += 1
            return await self.send(self.client.route, body, is_cut=is_cut)

        while rng.random() < 0.15:
            await sent(is_cut=True)
        if rng.random() < 0.1:
            answer, _ = await asyncio.gather(sent(), sent())
        else:
            answer = await sent()
        if not self.only_appends and rng.random() < 0.1:
            answer = rng.choice([answer, await sent()])
        assert answer is not None
        return self.client.whole(answer) if is_streamed else dict(json.loads(answer))


def check_columns(columns: SessionColumns, policy: Any) -> int:
    """Compare the training sequences of a session with what the engine sampled in it. Return the trained samples.

    Every sequence is what the engine was given and sampled, and every sample trains once, up to its stop sequence;
    except those that no turn followed, while one followed another sample of the same prompt.

    policy: a `LoggedPolicy`, or what logs like it.
    """
    left: dict[tuple[int, ...], list[Generation]] = defaultdict(list)
    for prompt, sample in policy.log:
        left[prompt].append(sample)
    versions = {k: version for start, end, version in columns.spans for k in range(start, end)}
    num_trained = 0
    for segment in columns.segments:
        if segment.origin is Origin.policy:
            begin = max(start for start in columns.starts if start <= segment.start)
            places = range(segment.start, segment.end)
            samples = left[tuple(columns.ids[begin : segment.start])]
            logprobs = [columns.logprobs[k] for k in places]
            (sample,) = [one for one in samples if [*one.logprobs[: len(places)]] == logprobs]
            assert [*sample.ids[: len(places)]] == [columns.ids[k] for k in places]
            assert len(places) == len(sample.ids) or STOP in policy.decode(sample.ids)
            sampled = [version for start, end, version in sample.version_spans for _ in range(start, end)]
            assert sampled[: len(places)] == [versions.pop(k) for k in places]
            samples.remove(sample)
            num_trained += 1
    assert not versions and sum(p is not None for p in columns.logprobs) == sum(
        segment.end - segment.start for segment in columns.segments if segment.origin is Origin.policy
    )
    prompts = Counter(prompt for prompt, _ in policy.log)
    assert all(not samples or prompts[prompt] > 1 for prompt, samples in left.items()), "a sample does not train"
    return num_trained


def send_to(http: aiohttp.ClientSession, url: str, secret: str, rng: Random) -> Send:
    """Return a client's connection to its session."""

    async def post(route: str, body: bytes) -> bytes:
        headers = {"x-api-key": secret, "x-stainless-retry-count": str(rng.randrange(3))}
        async with http.post(url + route, data=body, headers=headers) as response:
            content = await response.read()
            assert response.status == 200, content
            return content

    async def send(route: str, body: bytes, *, is_cut: bool = False) -> bytes | None:
        if not is_cut:
            return await post(route, body)
        with suppress(TimeoutError):  # after a part of the sample, or of the answer
            async with asyncio.timeout(rng.choice([0.001, 0.01, 0.03])):
                await post(route, body)
        return None

    return send


@dataclass(frozen=True, slots=True)
class Fuzz:
    """A gateway and what its clients share."""

    sessions: Sessions
    gateway: Gateway
    http: aiohttp.ClientSession

    async def run_session(self, client: type[ChatClient], chat: ChatFormat, seed: int, turns: int) -> Counter[str]:
        """Run one client in a session of its own, and check its training sequences. Return what happened.

        A client of an even seed only appends.
        """
        rng, policy = Random(seed), LoggedPolicy(chat, random_turns(chat))
        session = AgentSession(make_agent(chat, policy), TrajectoryKey(seed=seed, step=0, task_id="t", sibling=0))
        secret = self.sessions.open(session)
        send = send_to(self.http, self.gateway.url, secret, rng)
        fuzzed = FuzzedAgent(client=client(), send=send, rng=rng, only_appends=seed % 2 == 0)
        await fuzzed.run(turns)
        await self.sessions.close(secret)
        return check_session(session, policy, fuzzed)


def make_agent(chat: ChatFormat, policy: Any) -> Agent:
    limits = RolloutLimits(max_response_tokens=1 << 19, max_turns=1 << 20, max_tool_tokens=200, timeout_s=600.0)
    tools = Dispatcher(tools=[])
    return Agent(inference=policy, chat=chat, tools=tools, judge=NoJudge(), limits=limits, sampling=Sampling())


def check_session(session: AgentSession, policy: LoggedPolicy, fuzzed: FuzzedAgent) -> Counter[str]:
    """Check the training sequences of a session. Return what happened in it."""
    columns = session.graph.columns()
    num_trained = check_columns(columns, policy)
    if fuzzed.only_appends:
        # The server may have written an answer that its client did not read: then the last prompt has two samples.
        num_last = sum(prompt == policy.log[-1][0] for prompt, _ in policy.log)
        longest = max(len(prompt) + len(sample.ids) for prompt, sample in policy.log)
        assert len(columns.starts) == num_last, session.graph.reasons
        assert len(columns.ids) <= 1.05 * longest * num_last
    assert session.graph.reasons["first"] == 1
    found = Counter({"requests": fuzzed.num_requests, "sequences": len(columns.starts), "trained": num_trained})
    found.update(samples=len(policy.log), discards=len(session.graph.discards()), retries=session.num_retries)
    found.update(answers_with_calls=sum(bool(node.message.calls) for node in session.graph.nodes))
    found.update(answers_with_reasoning=sum(bool(node.message.reasoning) for node in session.graph.nodes))
    return found + Counter({f"root: {reason}": number for reason, number in session.graph.reasons.items()})


class NoJudge:
    """Scores nothing."""

    async def score(self, attempt: Attempt, *, deadline: float | None) -> Outcome:
        raise AssertionError("no attempt of this test is scored")


TEMPLATES = (("rstar2", "refuse"), ("compact", "refuse"), ("qwen3", "keep"), ("llama3", "refuse"))


async def fuzz(num_turns: int) -> Counter[str]:
    """Run sessions of all dialects and templates, eight at a time, until the engine sampled so many turns."""
    found, seeds, sessions = Counter[str](), count(), Sessions()
    chats = [
        ChatFormat(LLAMA if name == "llama3" else ByteTokenizer(), load_template(name, None), [], thinking=thinking)
        for name, thinking in TEMPLATES
    ]

    async def work(fuzzing: Fuzz) -> None:
        while found["samples"] < num_turns:
            seed = next(seeds)
            client, chat = CLIENTS[seed // 2 % len(CLIENTS)], chats[seed // 2 // len(CLIENTS) % len(chats)]
            found.update(await fuzzing.run_session(client, chat, seed, turns=10))
            found["sessions"] += 1

    async with open_gateway(sessions, model="m", max_context=None) as gateway, aiohttp.ClientSession() as http:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(work(Fuzz(sessions, gateway, http)))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10_000)
    for what, number in asyncio.run(fuzz(parser.parse_args().turns)).most_common():
        print(f"{number:8} {what}")
