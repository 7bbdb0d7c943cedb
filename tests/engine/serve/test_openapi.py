"""The description is valid, complete and true: its examples are sent, and the answers held against it."""

import json
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from rocstar.engine.gateway.dialects.fields import NEUTRAL, Fields
from rocstar.engine.gateway.messages import Request
from rocstar.engine.serve.endpoint import OPEN_PATHS
from rocstar.engine.serve.openapi import EVENTS, ROUTES, build_document
from rocstar.engine.serve.request_builder import RequestBuilder
from rocstar.engine.serve.requests import (
    GenerationRequest,
    read_chat,
    read_completion,
    read_detokenize,
    read_feedback,
    read_tokenize,
)
from rocstar.sandbox.http.errors import RequestError

from .conftest import QUESTION, Serving, SlowTool, call, events, make_agent, scripted

DOCUMENT = build_document(needs_token=False)
TOKEN = "0123456789abcdef"


def fails(value: Any, schema: str) -> str:
    """What is wrong with a value; empty where it is as described."""
    root = {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]}
    errors = jsonschema.Draft202012Validator(root).iter_errors(value)
    return "; ".join(error.message[:200] for error in errors)


@pytest.mark.parametrize("needs_token", [False, True])
def test_it_is_a_valid_description(needs_token: bool) -> None:
    OpenAPIV31SpecValidator(build_document(needs_token=needs_token)).validate()


async def test_it_has_the_routes_of_the_router_and_no_others(serving: Serving) -> None:
    async with serving(scripted(["4"])) as client:
        real = {(method, path) for method, path in client.endpoint.routes if method != "HEAD"}
        shown = json.loads(await client.get("/openapi.json"))
    described = {(method.upper(), path) for path, methods in shown["paths"].items() for method in methods}
    assert described == real and len(described) >= 14


async def test_what_a_route_takes_and_answers_is_described(serving: Serving) -> None:
    """Every example, and a refusal of every route that takes a body."""
    async with serving(scripted([call("1"), "<think>So.</think>4"]), keeps=True) as client:
        id_ = (await client.chat())["id"]
        for route in (route for route in ROUTES if not route.vendor):
            assert (route.body is None) == (route.example is None)
            body = {**route.example, "id": id_} if route.body == "FeedbackRequest" else route.example
            path = client.endpoint.url + route.path.replace("{model}", "rocstar-raw")
            async with client.session.request(route.method, path, json=body, allow_redirects=False) as answer:
                text = await answer.text()
                assert answer.status == route.status, text
                assert route.status != 200 or answer.content_type == route.content
            if route.body is not None:
                assert not fails(body, route.body)
                refused = await client.json(route.path, {"model": 1}, status=400)
                assert not fails(refused, "ErrorBody")
            if route.answer is not None:
                assert not fails(json.loads(text), route.answer), route.path


async def test_events_are_described_too(serving: Serving) -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}}
    tool = {"type": "function", "function": {"name": "add"}}
    say = '<think>So.</think>I add. <tool_call>{"name": "add", "arguments": {}}</tool_call>'
    async with serving(scripted([say, "4"])) as client:
        chats = [await client.stream(**body), await client.stream(**body, model="rocstar-raw", tools=[tool])]
        whole = await client.chat(model="rocstar-raw", tools=[tool], metadata={"answer": "4"}, n=2)
        body = {"model": "rocstar-raw", "prompt": "a", "echo": True, "logprobs": 1, **body}
        async with client.post("/v1/completions", body) as response:
            assert response.content_type == EVENTS
            texts = [chunk async for chunk in events(response)]
    assert not fails(whole, "ChatCompletion") and "tool_calls" in whole["choices"][0]["message"]
    for chunks, schema in (*((one, "ChatCompletionChunk") for one in chats), (texts, "TextCompletionChunk")):
        assert chunks[-1] == "data: [DONE]" and len(chunks) > 4
        assert [payload for chunk in chunks[:-1] if (payload := fails(chunk, schema))] == []
    assert any("server_tool_event" in chunk for chunk in chats[0] if isinstance(chunk, dict))


async def test_the_token_is_asked_for_where_the_description_says(serving: Serving) -> None:
    assert {route.path for route in ROUTES if route.open} == OPEN_PATHS
    async with serving(scripted(["4"]), token=TOKEN) as client:
        shown = json.loads(await client.get("/openapi.json"))
        for route in ROUTES:
            url = client.endpoint.url + route.path
            async with client.session.request(route.method, url, allow_redirects=False) as answer:
                assert (answer.status != 401) == route.open
                assert route.open or route.vendor or not fails(await answer.json(), "ErrorBody")
            operation = shown["paths"][route.path][route.method.lower()]
            assert operation["security"] == ([] if route.open else [{"token": []}])


BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ChatRequest": (read_chat, {"model": "rocstar-raw", "messages": [QUESTION]}),
    "CompletionRequest": (read_completion, {"model": "rocstar-raw", "prompt": "a"}),
    "TokenizeRequest": (read_tokenize, {"prompt": "a"}),
    "DetokenizeRequest": (read_detokenize, {"tokens": [1]}),
    "FeedbackRequest": (read_feedback, {"id": "a", "thumb": "up"}),
}
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 1.5, 16.0, 128, 129, 2**31, 2**63, -(2**63), -(2**63) - 1, 1e300),
    *("", "x", "1", "auto", "none", "required", "text", "up", "rocstar-raw", "a" * 300),
    *([], [""], ["x"], ["x", ""], ["x"] * 17, [1], [-1], [True], [2**31], [[1]], [[]], [[1], []], [[1], "x"]),
    *({}, {"type": "text"}, {"type": "json_object"}, {"type": None}, {"a": "b"}, {"a": 1}),
    *({"include_usage": True}, {"include_usage": 1}),
    *([{}], [QUESTION], [{"role": "bot", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": 1}]),
    *([{"role": "assistant"}], [{"role": "user", "content": [{"type": "text", "text": "x"}]}]),
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    *([{"type": "function"}], [{"type": "function", "function": {"name": "f"}}], [{"type": "x"}]),
    [{"type": "function", "function": {"name": ""}}],
    [{"type": "function", "function": {"name": "f", "parameters": None}}],
    [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, QUESTION],
)


def is_taken(schema: str, faces: RequestBuilder, value: Any) -> bool:
    """Whether a request goes through all that is checked before anything begins."""
    read, _ = BASES[schema]
    try:
        body = read(Fields.of_body(json.dumps(value).encode()))
        if isinstance(body, GenerationRequest):
            faces.completions(body) if body.prompts else faces.chat(body)
        elif isinstance(body, Request) and body.prompt_ids is None:
            faces.tokenize(body)
    except RequestError as refusal:
        return not refusal.field  # a refusal that names no field is wrong, too
    return True


@pytest.mark.parametrize("schema", BASES)
def test_what_is_described_is_taken_and_nothing_else(schema: str) -> None:
    faces = RequestBuilder(make_agent(scripted(["4"]), SlowTool()), None)
    base = BASES[schema][1]
    properties = DOCUMENT["components"]["schemas"][schema]["properties"]
    assert "model" not in base or properties.keys() >= NEUTRAL.keys()
    wrong = []
    # What may stand beside a prefix depends on the face and the messages, which no schema says.
    for name in (*sorted(properties.keys() - {"prefix_token_ids"}), "unknown"):
        for odd in ODD:
            value = {**base, name: odd}
            if is_taken(schema, faces, value) == bool(payload := fails(value, schema)):
                wrong.append(f"{name} = {odd!r:.80}: {payload[:80] or 'described'}")
        rest = {other: base[other] for other in base if other != name}
        if is_taken(schema, faces, rest) == bool(fails(rest, schema)):
            wrong.append(f"without {name}")
    assert not wrong, "\n".join(wrong)
