"""The OpenAPI description of the endpoint: /openapi.json, and what the page at / lists.

    models of bodies (asked.py) ──┐
    models of answers (answers.py)├──> components ──> document
    ROUTES ───────────────────────┘

`ROUTES` has an entry per route of the router; a test compares them, and sends every example.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rocstar.engine.serve import answers, asked

JSON, EVENTS, HTML, TEXT = "application/json", "text/event-stream", "text/html", "text/plain"
CONVERSATIONS, TOKENS, OPERATION = "conversations", "tokens", "operation"
REF = "#/components/schemas/{model}"
QUESTION = [{"role": "user", "content": "What is 17 times 23?"}]


@dataclass(frozen=True, slots=True)
class ServedRoute:
    """What openapi.json says of one route.

    Attributes:
        body: what is asked; None where the request has none.
        answer: what comes with status 200; None where it is no JSON.
        chunk: an event of a streamed answer; None where nothing is streamed.
        content: the type of an answer that is no JSON.
        example: a body that is answered with 200, where the server is one that can.
        status: of the answer.
        open: needs no token.
    """

    method: str
    path: str
    kind: str
    summary: str
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    chunk: type[BaseModel] | None = None
    content: str = field(default=JSON, kw_only=True)
    example: Any = field(default=None, kw_only=True)
    status: int = field(default=200, kw_only=True)
    open: bool = field(default=False, kw_only=True)


def _twice(route: ServedRoute) -> tuple[ServedRoute, ServedRoute]:
    """Some clients look for a path at the root, others below /v1."""
    return route, replace(route, path=f"/v1{route.path}")


ROUTES = (
    ServedRoute(
        "POST", "/v1/chat/completions", CONVERSATIONS,
        "The agent with its own tools, or the model with the client's.",
        asked.AskedChat, answers.ChatCompletion, answers.ChatCompletionChunk,
        example={"model": asked.AGENT, "messages": QUESTION},
    ),
    ServedRoute(
        "POST", "/v1/completions", CONVERSATIONS, "The model alone, behind texts or token ids.",
        asked.AskedCompletion, answers.TextCompletion, answers.TextCompletionChunk,
        example={"model": asked.RAW, "prompt": "17 times 23 is", "logprobs": 1},
    ),
    ServedRoute(
        "POST", "/v1/feedback", CONVERSATIONS, "A person's verdict on one choice of an answer: its reward.",
        asked.AskedFeedback, answers.Feedback,
        example={"id": "chatcmpl-1-0123456789abcdef", "index": 0, "thumb": "up"},
    ),
    ServedRoute("GET", "/v1/models", CONVERSATIONS, "The names to ask for.", None, answers.ModelList),
    ServedRoute("GET", "/v1/models/{model}", CONVERSATIONS, "One of them.", None, answers.Model),
    *_twice(ServedRoute(
        "POST", "/tokenize", TOKENS, "Token ids of a text, or of messages as the agent reads them.",
        asked.AskedTokens, answers.Tokens, example={"prompt": "17 times 23"},
    )),
    *_twice(ServedRoute(
        "POST", "/detokenize", TOKENS, "The text of token ids.",
        asked.AskedText, answers.Text, example={"tokens": [1, 2, 3]},
    )),
    *_twice(ServedRoute(
        "GET", "/tokenizer_info", TOKENS, "Special tokens and the chat template.", None, answers.TokenizerInfo
    )),
    *(ServedRoute(
        "GET", path, OPERATION, "Whether requests are taken; 503 while the server ends.",
        None, answers.Health, open=True,
    ) for path in ("/health", "/readyz")),
    ServedRoute(
        "GET", "/healthz", OPERATION, "Whether the process answers.", None, answers.Health, open=True
    ),
    ServedRoute("GET", "/metrics", OPERATION, "What Prometheus reads.", content=TEXT),
    ServedRoute("GET", "/openapi.json", OPERATION, "This description.", open=True),
    ServedRoute("GET", "/", OPERATION, "A page about this server.", content=HTML, open=True),
    ServedRoute("GET", "/docs", OPERATION, "The way to that page.", status=302, open=True),
)  # fmt: skip
"""A row each: method, path, kind, summary, what is asked and answered, and an event where it streams."""


@cache
def document(*, needs_token: bool) -> dict[str, Any]:
    """The description, as a JSON value that nobody changes. needs_token: clients must send one."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, needs_token)
    components: dict[str, Any] = {"schemas": schemas()}
    if needs_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "rocstar serve", "version": "1"},
        "tags": [{"name": name} for name in (CONVERSATIONS, TOKENS, OPERATION)],
        "paths": paths,
        "components": components,
    }


@cache
def schemas() -> dict[str, Any]:
    """JSON schemas of all bodies and answers, by the names of their models."""
    models: set[type[BaseModel]] = {answers.RefusalBody}
    for route in ROUTES:
        models.update(one for one in (route.body, route.answer, route.chunk) if one is not None)
    ordered = sorted(models, key=lambda model: model.__name__)
    _, found = models_json_schema([(model, "validation") for model in ordered], ref_template=REF)
    defined: dict[str, Any] = found["$defs"]
    return defined


def _operation(route: ServedRoute, needs_token: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": [route.kind],
        "summary": route.summary,
        "responses": {str(route.status): _response(route)},
    }
    if not route.open or route.answer is not None:
        operation["responses"]["default"] = {
            "description": "refused",
            "content": _content(answers.RefusalBody),
        }
    if "{model}" in route.path:
        schema = {"type": "string", "enum": list(asked.MODELS)}
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": schema}]
    if route.body is not None:
        content = {JSON: {"schema": _ref(route.body), "example": route.example}}
        operation["requestBody"] = {"required": True, "content": content}
    if needs_token:
        operation["security"] = [] if route.open else [{"token": []}]
    return operation


def _response(route: ServedRoute) -> dict[str, Any]:
    if route.status != 200:
        return {"description": "elsewhere"}
    content = {route.content: {}} if route.answer is None else _content(route.answer)
    if route.chunk is not None:
        about = f"JSON of {route.chunk.__name__}, or of {answers.RefusalBody.__name__}; [DONE] at the end"
        event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
        content[EVENTS] = {"schema": event | {"description": about}}
    return {"description": "done", "content": content}


def _content(model: type[BaseModel]) -> dict[str, Any]:
    return {JSON: {"schema": _ref(model)}}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.__name__)}
