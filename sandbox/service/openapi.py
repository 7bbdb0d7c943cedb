"""The OpenAPI description of every route in all dialects, for /openapi.json.

routes.toml has an entry per route of the router; a test compares them and sends every example to the service.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from rocstar.sandbox.http import openapi
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
    *(CodeAnswer, NotebookAnswer),
    *(HealthBody, ReadyBody, ServiceErrorBody, FieldErrorsBody),
)


def body_models(service_limits: ServiceLimits) -> list[BodyModel[Any]]:
    """Return the models of all bodies, within the limits of one service."""
    native = native_bodies(service_limits)
    return [
        *(native.run, native.batch, native.session, native.cell),
        *judge_bodies(service_limits),
        *fusion_bodies(service_limits),
    ]


def schemas(service_limits: ServiceLimits) -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of all bodies and responses by name, generated from the models."""
    kinds = [*(body.type for body in body_models(service_limits)), *ANSWERS]
    _, found = msgspec.json.schema_components(kinds, ref_template=openapi.REF)
    return {**found, "Pong": msgspec.json.schema(Pong)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(openapi.RouteInfo):
    """A route. `answers`: the schema by status, or None for a response without a body; the example has the
    first status. `body`: the schema of the request body, or None."""

    answers: dict[int, str | None]
    body: str | None = None


_ENTRIES = tomllib.loads(Path(__file__).with_name("routes.toml").read_text(encoding="utf-8"))
NATIVE, *_ = DIALECTS = tuple(_ENTRIES)
"""The dialects, in the order of the description."""


def _route(dialect: str, *, route: str, answers: Mapping[str, str], **fields: Any) -> Route:
    method, path = route.split()
    by_status = {int(status): schema or None for status, schema in answers.items()}
    return Route(method=method, path=path, tag=dialect, answers=by_status, **fields)


ROUTES = tuple(_route(dialect, **entry) for dialect, entries in _ENTRIES.items() for entry in entries)


def build_document(service_limits: ServiceLimits) -> dict[str, Any]:
    """Return the description, with the limits of this service."""
    token = {"type": "http", "scheme": "bearer", "description": "needed if the service has a token"}
    components = {"schemas": schemas(service_limits), "securitySchemes": {"token": token}}
    document = openapi.build_openapi("rocstar sandbox", DIALECTS, ROUTES, _describe, components)
    return {**document, "security": [{"token": []}, {}]}


def _describe(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): _response(route, status, answer) for status, answer in route.answers.items()
    }
    if not route.open:
        error = "Failure" if route.path.startswith("/v1/") else "ServiceErrorBody"
        responses["default"] = {"description": "refused", "content": openapi.json_content(error)}
    text = {"type": "string"}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in ("id", "name")
        if f"{{{name}}}" in route.path
    ]
    if route.method == "POST" and route.tag == NATIVE:
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": text})
    operation = openapi.build_operation(
        route, responses, body=route.body, is_required=route.body != "Session", parameters=parameters
    )
    return {**operation, "security": []} if route.open else operation


def _response(route: Route, status: int, answer: str | None) -> dict[str, Any]:
    response: dict[str, Any] = {"description": "done" if status < 400 else "failed"}
    if answer is not None:
        response["content"] = openapi.json_content(answer)
    elif status == 200:
        response["content"] = {route.content: {}}
    if answer == "Outcomes":
        response["content"] |= {NDJSON: {"schema": openapi.ref("OutcomeLine")}}
    return response
