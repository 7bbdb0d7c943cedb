"""The OpenAPI description of every route, in all four dialects: /openapi.json, and what the page at / lists.

`ROUTES` has an entry per route of the router; a test compares them, and sends every example to the service.
"""

from dataclasses import dataclass
from typing import Any

from rocstar.sandbox.service.http import JSON, NDJSON
from rocstar.sandbox.service.openapi_schemas import ref, schemas
from rocstar.sandbox.service.rules import Rules

NATIVE, CODE_JUDGE, SANDBOX_FUSION, VERL_TOOL = "native", "code-judge", "SandboxFusion", "verl-tool"
OPERATION = "operation"
DIALECTS = (NATIVE, CODE_JUDGE, SANDBOX_FUSION, VERL_TOOL, OPERATION)
"""In the order in which they are shown."""

PROGRAM = "print(1)\n6 * 7"
JUDGED = {"type": "python", "solution": "print(input())", "input": "9", "expected_output": "9"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What openapi.json says of one route.

    Args:
        answers: the schema by status, or None for an answer without a body.
        content: the type of the answer with status 200.
        example: a body that is answered by the first of `answers`.
        open: needs no token.
    """

    method: str
    path: str
    dialect: str
    summary: str
    answers: dict[int, str | None]
    body: str | None = None
    example: Any = None
    content: str = JSON
    open: bool = False


def _native(method: str, path: str, summary: str, answer: str | None, **fields: Any) -> Route:
    answers = {fields.pop("status", 200): answer}
    return Route(method=method, path=path, dialect=NATIVE, summary=summary, answers=answers, **fields)


def _judging(verb: str, kind: str, summary: str) -> Route:
    many = kind != ""
    return Route(
        method="POST",
        path=f"/{verb}{kind}",
        dialect=CODE_JUDGE,
        summary=summary,
        body="Submissions" if many else "Submission",
        answers={200: f"{verb.capitalize()}Answer{'s' if many else ''}", 422: "Mistakes"},
        example={"submissions": [JUDGED]} if many else JUDGED,
    )


def _fusion(path: str, summary: str, body: str, answer: str, example: Any) -> Route:
    return Route(
        method="POST",
        path=path,
        dialect=SANDBOX_FUSION,
        summary=summary,
        body=body,
        answers={200: answer, 504: answer, 422: "Mistakes"},
        example=example,
    )


def _get(path: str, summary: str, answer: str | None, *, dialect: str = OPERATION, **fields: Any) -> Route:
    answers = fields.pop("answers", {200: answer})
    return Route(method="GET", path=path, dialect=dialect, summary=summary, answers=answers, **fields)


ROUTES = (
    _native("POST", "/v1/run", "Run one program.", "Result", body="Run", example={"code": PROGRAM}),
    _native(
        "POST",
        "/v1/batch",
        "Run many programs; outcomes come in order, or as they end.",
        "Outcomes",
        body="Batch",
        example={"requests": [{"code": PROGRAM}, {"code": "1 / 0", "limits": {"wall_s": 2.0}}]},
    ),
    _native(
        "POST",
        "/v1/sessions",
        "Open an interpreter that keeps its state.",
        "SessionId",
        status=201,
        body="Session",
        example={"limits": {"wall_s": 10.0}},
    ),
    _native("GET", "/v1/sessions", "List your sessions.", "SessionList"),
    _native("GET", "/v1/sessions/{id}/files", "List the files of a session.", "SessionFiles"),
    _native(
        "POST", "/v1/sessions/{id}/run", "Run one cell.", "Result", body="Cell", example={"code": PROGRAM}
    ),
    _native("PUT", "/v1/sessions/{id}/files/{name}", "Write a file: the body, as it is.", None, status=204),
    _native(
        "GET", "/v1/sessions/{id}/files/{name}", "Read a file.", None, content="application/octet-stream"
    ),
    _native("POST", "/v1/sessions/{id}/branch", "Go on twice from here.", "SessionId", status=201),
    _native("DELETE", "/v1/sessions/{id}", "End a session.", None, status=204),
    _judging("run", "", "Run one submission and show its output."),
    _judging("judge", "", "Judge one submission."),
    _judging("run", "/batch", "Run many submissions."),
    _judging("judge", "/batch", "Judge many submissions."),
    _judging("run", "/long-batch", "Run many submissions that may wait for an hour."),
    _judging("judge", "/long-batch", "Judge many submissions that may wait for an hour."),
    _get(
        "/status", "How many submissions wait, and how many run at a time.", "QueueStatus", dialect=CODE_JUDGE
    ),
    _get("/ping", "Answer.", "Pong", dialect=CODE_JUDGE, open=True),
    _fusion(
        "/run_code",
        "Run a program with its files.",
        "CodeRun",
        "CodeAnswer",
        {"code": PROGRAM, "language": "python", "files": {"a.txt": "aGVsbG8="}},
    ),
    _fusion(
        "/run_jupyter",
        "Run the cells of a notebook.",
        "Notebook",
        "NotebookAnswer",
        {"cells": ["x = 6", "x * 7"]},
    ),
    _get("/v1/ping", "Answer.", "Pong", dialect=SANDBOX_FUSION),
    Route(
        method="POST",
        path="/get_observation",
        dialect=VERL_TOOL,
        summary="Run the program of each action.",
        body="Actions",
        answers={200: "Observations", 422: "Mistakes"},
        example={"trajectory_ids": ["a"], "actions": ["```python\nprint(6 * 7)\n```"], "finish": [False]},
    ),
    _get("/health", "Whether the process answers.", "ToolServerHealth", dialect=VERL_TOOL),
    _get("/healthz", "Whether the process answers.", "Healthy", open=True),
    _get("/readyz", "Whether a program runs now.", "Ready", answers={200: "Ready", 503: "Ready"}, open=True),
    _get("/metrics", "What Prometheus reads.", None, content="text/plain"),
    _get("/openapi.json", "This description.", None, open=True),
    _get("/", "A page about this service.", None, content="text/html", open=True),
    _get("/docs", "The way to that page.", None, answers={302: None}, open=True),
)


def document(rules: Rules) -> dict[str, Any]:
    """The description, as a JSON value, with the bounds of this service."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "rocstar sandbox", "version": "1"},
        "tags": [{"name": name} for name in DIALECTS],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas(rules),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "needed if the service has a token",
                }
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): _response(route, status, answer) for status, answer in route.answers.items()
    }
    if not route.open:
        refusal = "Failure" if route.path.startswith("/v1/") else "Refusal"
        responses["default"] = {"description": "refused", "content": _content(refusal)}
    operation: dict[str, Any] = {"tags": [route.dialect], "summary": route.summary, "responses": responses}
    parameters = []
    if "{id}" in route.path:
        parameters.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string"}})
    if "{name}" in route.path:
        parameters.append({"name": "name", "in": "path", "required": True, "schema": {"type": "string"}})
    if route.method == "POST" and route.dialect == NATIVE:
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}})
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {JSON: {"schema": ref(route.body), "example": route.example}}
        operation["requestBody"] = {"required": route.body != "Session", "content": content}
    if route.open:
        operation["security"] = []
    return operation


def _response(route: Route, status: int, answer: str | None) -> dict[str, Any]:
    response: dict[str, Any] = {"description": "done" if status < 400 else "failed"}
    if answer is not None:
        response["content"] = _content(answer)
    elif status == 200:
        response["content"] = {route.content: {}}
    if answer == "Outcomes":
        response["content"] |= {NDJSON: {"schema": ref("OutcomeLine")}}
    return response


def _content(schema: str) -> dict[str, Any]:
    return {JSON: {"schema": ref(schema)}}
