"""The OpenAPI description of a server's routes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rocstar.sandbox.http.responses import JSON

REF = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """The description of a route; a server adds its bodies.

    Attributes:
        tag: The section of the description.
        example: A body, or None.
        content: The content type of the response with status 200.
        open: The route needs no token.
    """

    method: str
    path: str
    tag: str
    summary: str
    example: Any = field(default=None, kw_only=True)
    content: str = field(default=JSON, kw_only=True)
    open: bool = field(default=False, kw_only=True)


R = TypeVar("R", bound=RouteInfo)


def ref(name: str) -> dict[str, str]:
    """Return the reference to a schema."""
    return {"$ref": REF.format(name=name)}


def json_content(name: str) -> dict[str, Any]:
    """Return the content of a JSON response with a schema."""
    return {JSON: {"schema": ref(name)}}


def build_operation(
    route: RouteInfo,
    responses: Mapping[str, Any],
    *,
    body: str | None = None,
    is_required: bool = True,
    parameters: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the description of one method of a path. `body`: the schema of the request body."""
    operation: dict[str, Any] = {"tags": [route.tag], "summary": route.summary, "responses": responses}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        content = {JSON: {"schema": ref(body), "example": route.example}}
        operation["requestBody"] = {"required": is_required, "content": content}
    return operation


def build_openapi(
    title: str,
    tags: Sequence[str],
    routes: Iterable[R],
    describe: Callable[[R], dict[str, Any]],
    components: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the OpenAPI document as a JSON value. `describe` returns the operation of a route."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = describe(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "tags": [{"name": name} for name in tags],
        "paths": paths,
        "components": components,
    }
