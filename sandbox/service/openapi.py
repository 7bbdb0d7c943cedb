"""The OpenAPI description of every route in all dialects, for /openapi.json and the page at `/`.

`ROUTES` has an entry per route of the router; a test compares them and sends every example to the service.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import msgspec
from msgspec import Struct

from rocstar.sandbox.http.openapi import (
    REF,
    RouteInfo,
    build_openapi,
    build_operation,
    json_content,
    page_headers,
    ref,
    render_html,
    render_section,
)
from rocstar.sandbox.http.responses import NDJSON
from rocstar.sandbox.service.dialects.code_judge import (
    JudgeAnswer,
    JudgeAnswers,
    QueueStatus,
    RunAnswer,
    RunAnswers,
    judge_bodies,
)
from rocstar.sandbox.service.dialects.native import (
    OutcomeLine,
    Outcomes,
    SessionFiles,
    SessionId,
    SessionList,
    native_bodies,
)
from rocstar.sandbox.service.dialects.sandbox_fusion import CodeAnswer, NotebookAnswer, fusion_bodies
from rocstar.sandbox.service.dialects.verl_tool import Observations, ToolServerHealth, actions_model
from rocstar.sandbox.service.results import Failure, Result
from rocstar.sandbox.service.validation import BodyModel, ServiceLimits

Pong = Literal["pong"]


class HealthBody(Struct, forbid_unknown_fields=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class ReadyBody(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The readiness; `reason` if the sandbox cannot run a program."""

    ready: bool
    reason: str = ""


class ServiceErrorBody(Struct, forbid_unknown_fields=True):
    """Why nothing ran."""

    detail: str


class FieldErrorDetail(Struct):
    """An error and its location."""

    type: str
    loc: list[str | int]
    msg: str
    input: Any
    ctx: Any = None


class FieldErrorsBody(Struct, forbid_unknown_fields=True):
    """The errors of a body."""

    detail: list[FieldErrorDetail]


ANSWERS: tuple[Any, ...] = (
    *(Result, Failure, Outcomes, OutcomeLine, SessionId),
    *(SessionList, SessionFiles),
    *(RunAnswer, RunAnswers, JudgeAnswer, JudgeAnswers, QueueStatus),
    *(CodeAnswer, NotebookAnswer, Observations, ToolServerHealth),
    *(HealthBody, ReadyBody, ServiceErrorBody, FieldErrorsBody),
)


def body_models(service_limits: ServiceLimits) -> list[BodyModel[Any]]:
    """Return the models of all bodies, within the limits of one service."""
    native = native_bodies(service_limits)
    return [
        *(native.run, native.batch, native.session, native.cell),
        *judge_bodies(service_limits),
        *fusion_bodies(service_limits),
        actions_model(service_limits),
    ]


def schemas(service_limits: ServiceLimits) -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of all bodies and responses by name, generated from the models."""
    kinds = [*(body.type for body in body_models(service_limits)), *ANSWERS]
    _, found = msgspec.json.schema_components(kinds, ref_template=REF)
    return {**found, "Pong": msgspec.json.schema(Pong)}


NATIVE, CODE_JUDGE, SANDBOX_FUSION, VERL_TOOL = "native", "code-judge", "SandboxFusion", "verl-tool"
OPERATION = "operation"
DIALECTS = (NATIVE, CODE_JUDGE, SANDBOX_FUSION, VERL_TOOL, OPERATION)
"""The dialects, in the order of the page."""

PROGRAM = "print(1)\n6 * 7"
JUDGED = {"type": "python", "solution": "print(input())", "input": "9", "expected_output": "9"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(RouteInfo):
    """A route. `answers`: the schema by status, or None for a response without a body; the example has the
    first status. `body`: the schema of the request body, or None."""

    answers: dict[int, str | None]
    body: str | None = None


def _native(method: str, path: str, summary: str, answer: str | None, **fields: Any) -> Route:
    answers = {fields.pop("status", 200): answer}
    return Route(method=method, path=path, tag=NATIVE, summary=summary, answers=answers, **fields)


def _judging(verb: str, kind: str, summary: str) -> Route:
    many = kind != ""
    return Route(
        method="POST",
        path=f"/{verb}{kind}",
        tag=CODE_JUDGE,
        summary=summary,
        body="Submissions" if many else "Submission",
        answers={200: f"{verb.capitalize()}Answer{'s' if many else ''}", 422: "FieldErrorsBody"},
        example={"submissions": [JUDGED]} if many else JUDGED,
    )


def _fusion(path: str, summary: str, body: str, answer: str, example: Any) -> Route:
    return Route(
        method="POST",
        path=path,
        tag=SANDBOX_FUSION,
        summary=summary,
        body=body,
        answers={200: answer, 504: answer, 422: "FieldErrorsBody"},
        example=example,
    )


def _get(path: str, summary: str, answer: str | None, *, tag: str = OPERATION, **fields: Any) -> Route:
    answers = fields.pop("answers", {200: answer})
    return Route(method="GET", path=path, tag=tag, summary=summary, answers=answers, **fields)


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
    _native("POST", "/v1/sessions/{id}/run", "Run one cell.", "Result", body="Cell", example={"code": PROGRAM}),
    _native("PUT", "/v1/sessions/{id}/files/{name}", "Write a file: the body, as it is.", None, status=204),
    _native("GET", "/v1/sessions/{id}/files/{name}", "Read a file.", None, content="application/octet-stream"),
    _native("POST", "/v1/sessions/{id}/branch", "Copy a session.", "SessionId", status=201),
    _native("DELETE", "/v1/sessions/{id}", "End a session.", None, status=204),
    _judging("run", "", "Run one submission and show its output."),
    _judging("judge", "", "Judge one submission."),
    _judging("run", "/batch", "Run many submissions."),
    _judging("judge", "/batch", "Judge many submissions."),
    _judging("run", "/long-batch", "Run many submissions that may wait for an hour."),
    _judging("judge", "/long-batch", "Judge many submissions that may wait for an hour."),
    _get("/status", "How many submissions wait, and how many run at a time.", "QueueStatus", tag=CODE_JUDGE),
    _get("/ping", "Answer.", "Pong", tag=CODE_JUDGE, open=True),
    _fusion(
        "/run_code",
        "Run a program with its files.",
        "CodeRun",
        "CodeAnswer",
        {"code": PROGRAM, "language": "python", "files": {"a.txt": "aGVsbG8="}},
    ),
    _fusion(
        "/run_jupyter", "Run the cells of a notebook.", "Notebook", "NotebookAnswer", {"cells": ["x = 6", "x * 7"]}
    ),
    _get("/v1/ping", "Answer.", "Pong", tag=SANDBOX_FUSION),
    Route(
        method="POST",
        path="/get_observation",
        tag=VERL_TOOL,
        summary="Run the program of each action.",
        body="Actions",
        answers={200: "Observations", 422: "FieldErrorsBody"},
        example={"trajectory_ids": ["a"], "actions": ["```python\nprint(6 * 7)\n```"], "finish": [False]},
    ),
    _get("/health", "Liveness of the process.", "ToolServerHealth", tag=VERL_TOOL),
    _get("/healthz", "Liveness of the process.", "HealthBody", open=True),
    _get(
        "/readyz", "Readiness: runs a program.", "ReadyBody", answers={200: "ReadyBody", 503: "ReadyBody"}, open=True
    ),
    _get("/metrics", "Metrics for Prometheus.", None, content="text/plain"),
    _get("/openapi.json", "This description.", None, open=True),
    _get("/", "A page about this service.", None, content="text/html", open=True),
    _get("/docs", "A redirect to that page.", None, answers={302: None}, open=True),
)


def build_document(service_limits: ServiceLimits) -> dict[str, Any]:
    """Return the description, with the limits of this service."""
    token = {"type": "http", "scheme": "bearer", "description": "needed if the service has a token"}
    components = {"schemas": schemas(service_limits), "securitySchemes": {"token": token}}
    document = build_openapi("rocstar sandbox", DIALECTS, ROUTES, _describe, components)
    return {**document, "security": [{"token": []}, {}]}


def _describe(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): _response(route, status, answer) for status, answer in route.answers.items()
    }
    if not route.open:
        error = "Failure" if route.path.startswith("/v1/") else "ServiceErrorBody"
        responses["default"] = {"description": "refused", "content": json_content(error)}
    text = {"type": "string"}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in ("id", "name")
        if f"{{{name}}}" in route.path
    ]
    if route.method == "POST" and route.tag == NATIVE:
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": text})
    operation = build_operation(
        route, responses, body=route.body, is_required=route.body != "Session", parameters=parameters
    )
    return {**operation, "security": []} if route.open else operation


def _response(route: Route, status: int, answer: str | None) -> dict[str, Any]:
    response: dict[str, Any] = {"description": "done" if status < 400 else "failed"}
    if answer is not None:
        response["content"] = json_content(answer)
    elif status == 200:
        response["content"] = {route.content: {}}
    if answer == "Outcomes":
        response["content"] |= {NDJSON: {"schema": ref("OutcomeLine")}}
    return response


SCRIPT = """
"use strict";
const form = document.getElementById("form");
function show(id, text) {
  const place = document.getElementById(id);
  place.textContent = text;
  place.hidden = text === "";
}
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  for (const id of ["stdout", "value", "stderr"]) show(id, "");
  show("status", "running");
  const headers = { "Content-Type": "application/json" };
  if (form.token && form.token.value) headers.Authorization = "Bearer " + form.token.value;
  const body = JSON.stringify({ code: form.code.value, stdin: form.stdin.value });
  try {
    const answer = await fetch("v1/run", { method: "POST", headers, body });
    const result = await answer.json();
    if (!answer.ok) throw new Error(answer.status + ": " + result.error.message);
    show("status", result.status + " after " + result.wall_s.toFixed(3) + " s");
    show("stdout", result.stdout);
    show("value", result.value === null ? "" : result.value);
    show("stderr", result.stderr);
  } catch (error) {
    show("status", String(error.message));
  }
});
"""

HEADERS = page_headers(SCRIPT)


def render_page(host: str, flavours: Sequence[str], *, needs_token: bool) -> str:
    """Return the page, with a form that runs a program. `host`: the Host header, which the client chooses."""
    token_field = '<p><label>Token <input name="token" type="password" autocomplete="off" required></label></p>'
    form = f"""<h2>Run a program</h2>
<form id="form">
<p><label>Program
<textarea name="code" rows="6" spellcheck="false" required>print(6 * 7)</textarea></label></p>
<p><label>Standard input <textarea name="stdin" rows="1" spellcheck="false"></textarea></label></p>
{token_field if needs_token else ""}
<p><button>Run</button> <output id="status"></output></p>
</form>
<pre id="stdout" hidden></pre><pre id="value" hidden></pre><pre id="stderr" hidden></pre>
"""
    sections = (render_section(dialect, ROUTES, host, needs_token=needs_token, max_examples=1) for dialect in DIALECTS)
    intro = f"This service runs programs in isolation, in {escape(', '.join(flavours))}."
    return render_html("rocstar sandbox", intro, form + "".join(sections), needs_token=needs_token, script=SCRIPT)
