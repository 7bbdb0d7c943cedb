"""The OpenAPI description of the endpoint, for /openapi.json and the page at `/`.

`ROUTES` has an entry per route of the router; a test compares them and sends every example.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rocstar.engine.serve.requests import (
    AGENT,
    MODELS,
    RAW,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    FeedbackRequest,
    TokenizeRequest,
)
from rocstar.sandbox.http.openapi import (
    REF,
    RouteInfo,
    build_openapi,
    build_operation,
    json_content,
    page_headers,
    render_html,
    render_section,
)

EVENTS, HTML, TEXT = "text/event-stream", "text/html", "text/plain"
SCHEMAS = json.loads(Path(__file__).with_name("schemas.json").read_text(encoding="utf-8"))
"""The schemas of response bodies by name; tests compare them with the responses."""
TAGS = CONVERSATIONS, TOKENS, OPERATION = "conversations", "tokens", "operation"
QUESTION = [{"role": "user", "content": "What is 17 times 23?"}]


@dataclass(frozen=True, slots=True)
class ServedRoute(RouteInfo):
    """A route with its models.

    Attributes:
        body: the model of the request body, or None.
        answer: the schema of the response with status 200; None if it is not JSON.
        chunk: the schema of an event of a stream, or None.
        status: the status of the response.
    """

    body: type[BaseModel] | None = None
    answer: str | None = None
    chunk: str | None = None
    status: int = field(default=200, kw_only=True)


def _twice(route: ServedRoute) -> tuple[ServedRoute, ServedRoute]:
    """Return the route at the root and below /v1; clients use either."""
    return route, replace(route, path=f"/v1{route.path}")


ROUTES = (
    ServedRoute(
        "POST", "/v1/chat/completions", CONVERSATIONS,
        "The agent with its own tools, or the model with the client's.",
        ChatRequest, "ChatCompletion", "ChatCompletionChunk",
        example={"model": AGENT, "messages": QUESTION},
    ),
    ServedRoute(
        "POST", "/v1/completions", CONVERSATIONS, "The model alone, after texts or token ids.",
        CompletionRequest, "TextCompletion", "TextCompletionChunk",
        example={"model": RAW, "prompt": "17 times 23 is", "logprobs": 1},
    ),
    ServedRoute(
        "POST", "/v1/feedback", CONVERSATIONS, "A person's verdict on one choice of an answer: its reward.",
        FeedbackRequest, "Feedback",
        example={"id": "chatcmpl-1-0123456789abcdef", "index": 0, "thumb": "up"},
    ),
    ServedRoute("GET", "/v1/models", CONVERSATIONS, "The names to ask for.", None, "ModelList"),
    ServedRoute("GET", "/v1/models/{model}", CONVERSATIONS, "One of them.", None, "Model"),
    *_twice(ServedRoute(
        "POST", "/tokenize", TOKENS, "Token ids of a text, or of messages as the agent reads them.",
        TokenizeRequest, "Tokens", example={"prompt": "17 times 23"},
    )),
    *_twice(ServedRoute(
        "POST", "/detokenize", TOKENS, "The text of token ids.",
        DetokenizeRequest, "Text", example={"tokens": [1, 2, 3]},
    )),
    *_twice(ServedRoute(
        "GET", "/tokenizer_info", TOKENS, "Special tokens and the chat template.", None, "TokenizerInfo",
    )),
    *(ServedRoute(
        "GET", path, OPERATION, "Readiness; 503 during the shutdown.",
        None, "Health", open=True,
    ) for path in ("/health", "/readyz")),
    ServedRoute(
        "GET", "/healthz", OPERATION, "Liveness of the process.", None, "Health", open=True,
    ),
    ServedRoute("GET", "/metrics", OPERATION, "Metrics for Prometheus.", content=TEXT),
    ServedRoute("GET", "/openapi.json", OPERATION, "This description.", open=True),
    ServedRoute("GET", "/", OPERATION, "A page about this server.", content=HTML, open=True),
    ServedRoute("GET", "/docs", OPERATION, "A redirect to that page.", status=302, open=True),
)  # fmt: skip
"""The routes: method, path, kind, summary, models of request, response and stream event."""


@cache
def build_document(*, needs_token: bool) -> dict[str, Any]:
    """Return the description. Do not change it: it is cached. needs_token: clients must send one."""
    components: dict[str, Any] = {"schemas": schemas()}
    if needs_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    describe = partial(_describe, needs_token=needs_token)
    return build_openapi("rocstar serve", TAGS, ROUTES, describe, components)


@cache
def schemas() -> dict[str, Any]:
    """Return the JSON schemas of all bodies and answers, by name."""
    models = sorted({route.body for route in ROUTES if route.body is not None}, key=lambda m: m.__name__)
    _, found = models_json_schema(
        [(model, "validation") for model in models], ref_template=REF.replace("name", "model")
    )
    return {**found["$defs"], **SCHEMAS}


def _describe(route: ServedRoute, *, needs_token: bool) -> dict[str, Any]:
    responses = {str(route.status): _response(route)}
    if not route.open or route.answer is not None:
        responses["default"] = {"description": "refused", "content": json_content("ErrorBody")}
    parameters = []
    if "{model}" in route.path:
        schema = {"type": "string", "enum": list(MODELS)}
        parameters.append({"name": "model", "in": "path", "required": True, "schema": schema})
    body = None if route.body is None else route.body.__name__
    operation = build_operation(route, responses, body=body, parameters=parameters)
    if needs_token:
        operation["security"] = [] if route.open else [{"token": []}]
    return operation


def _response(route: ServedRoute) -> dict[str, Any]:
    if route.status != 200:
        return {"description": "elsewhere"}
    content = {route.content: {}} if route.answer is None else json_content(route.answer)
    if route.chunk is not None:
        about = f"JSON of {route.chunk}, or of ErrorBody; [DONE] at the end"
        event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
        content[EVENTS] = {"schema": event | {"description": about}}
    return {"description": "done", "content": content}


HEADERS = page_headers()


def render_page(host: str, *, needs_token: bool) -> str:
    """Return the page. host: the Host header, which the client chooses."""
    sections = (render_section(tag, ROUTES, host, needs_token=needs_token) for tag in TAGS)
    intro = f"This server has OpenAI's API; its models are {' and '.join(MODELS)}."
    return render_html("rocstar serve", intro, "".join(sections), needs_token=needs_token)
