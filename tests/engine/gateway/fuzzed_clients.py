"""Clients of every dialect that change their history as real agents do, over a policy that logs what it sampled.

    python -m tests.engine.gateway.fuzzed_clients --turns 10000

A client keeps the items of its dialect and sends them again: with the arguments of calls re-serialised, without
the reasoning, with other spaces at the ends of texts. It retries requests whose answer was cut, goes on from an
earlier turn, compacts its history, and starts sub-agents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import Any

Item = dict[str, Any]
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


CLIENTS: Sequence[Callable[[], ChatClient]] = (ChatClient, AnthropicClient, ResponsesClient)
