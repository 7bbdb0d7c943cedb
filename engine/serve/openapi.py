"""The OpenAPI description of the endpoint, for /openapi.json.

routes.toml has an entry per route of the router; a test compares them and sends every example.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from rocstar.engine.serve.requests import MODELS
from rocstar.sandbox.http.openapi import RouteInfo, build_openapi, build_operation, json_content

EVENTS = "text/event-stream"
SCHEMAS = json.loads(Path(__file__).with_name("schemas.json").read_text(encoding="utf-8"))
"""The schemas of all bodies by name; tests compare them with the models of requests, and with responses."""


@dataclass(frozen=True, slots=True)
class ServedRoute(RouteInfo):
    """A route with its models.

    Attributes:
        body: the schema of the request body, or None.
        answer: the schema of the response with status 200; None if it is not JSON.
        chunk: the schema of an event of a stream, or None.
        status: the status of the response.
        vendor: whose format the bodies have, which is not described here; "" for ours.
    """

    body: str | None = None
    answer: str | None = None
    chunk: str | None = None
    status: int = field(default=200, kw_only=True)
    vendor: str = field(default="", kw_only=True)


_ENTRIES = tomllib.loads(Path(__file__).with_name("routes.toml").read_text(encoding="utf-8"))
TAGS = tuple(_ENTRIES)
"""The sections of the description."""


def _routes(tag: str, *, route: str, prefixes: Sequence[str] = ("",), **fields: Any) -> list[ServedRoute]:
    method, path = route.split()
    return [ServedRoute(method, prefix + path, tag, **fields) for prefix in prefixes]


ROUTES = tuple(route for tag, entries in _ENTRIES.items() for entry in entries for route in _routes(tag, **entry))
"""The routes: method, path, kind, summary, models of request, response and stream event."""


@cache
def build_document(*, needs_token: bool) -> dict[str, Any]:
    """Return the description. Do not change it: it is cached. needs_token: clients must send one."""
    components: dict[str, Any] = {"schemas": SCHEMAS}
    if needs_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    describe = partial(_describe, needs_token=needs_token)
    return build_openapi("rocstar serve", TAGS, ROUTES, describe, components)


def _describe(route: ServedRoute, *, needs_token: bool) -> dict[str, Any]:
    responses = {str(route.status): _response(route)}
    if not route.open or route.answer is not None:
        responses["default"] = {"description": "refused", "content": json_content("ErrorBody")}
    parameters = []
    if "{model}" in route.path:
        schema = {"type": "string", "enum": list(MODELS)}
        parameters.append({"name": "model", "in": "path", "required": True, "schema": schema})
    if "{key}" in route.path:
        parameters.append({"name": "key", "in": "path", "required": True, "schema": {"type": "string"}})
    operation = build_operation(route, responses, body=route.body, parameters=parameters)
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
