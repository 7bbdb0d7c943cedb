"""The OpenAPI document: valid, complete, and equal to what the service accepts and answers."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from rocstar.sandbox.service.dialects.native import LIST_FILES
from rocstar.sandbox.service.openapi import ROUTES, Route, body_models, build_document
from rocstar.sandbox.service.validation import ServiceLimits, find_field_errors
from rocstar.sandbox.types import ExecResult, Limits
from tests.fakes.sandbox import FakeSandbox, error, ok

RULES = ServiceLimits(flavours=("stdlib", "numeric"), max_wall_s=20.0)
DOCUMENT = build_document(RULES)


@pytest.fixture
def time_enough() -> None:
    """The document has the usual limits."""


def check(value: Any, schema: str) -> None:
    root = {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]}
    jsonschema.validate(value, root, cls=jsonschema.Draft202012Validator)


def fails(value: Any, schema: str) -> bool:
    try:
        check(value, schema)
    except jsonschema.ValidationError:
        return True
    return False


def answer_of(request: Any) -> ExecResult:
    if "1 / 0" in request.code:
        return error("ZeroDivisionError: division by zero\n")
    value = "{}" if request.code == LIST_FILES else "42"
    return replace(ok("9\n", value=value), files=dict.fromkeys(request.fetch, b"x"))


@pytest.mark.parametrize("service_limits", [RULES, ServiceLimits(flavours=("stdlib",), max_wall_s=5.0)])
def test_it_is_a_valid_description(service_limits: ServiceLimits) -> None:
    OpenAPIV31SpecValidator(build_document(service_limits)).validate()


async def test_it_has_the_routes_of_the_router_and_no_others(serve: Any) -> None:
    async with serve(FakeSandbox({})) as service:
        real = {(method, path) for method, path in service.service.routes if method != "HEAD"}
        _, shown = await service.get("/openapi.json")
    described = {(method.upper(), path) for path, methods in shown["paths"].items() for method in methods}
    assert described == real
    assert len(described) >= 20


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_what_a_route_takes_and_answers_is_described(serve: Any, route: Route) -> None:
    assert (route.body is None) == (route.example is None)
    if route.body is not None:
        check(route.example, route.body)
    async with serve(FakeSandbox(answer_of), service_limits=RULES) as service:
        _, opened = await service.post("/v1/sessions", {})
        path = route.path.replace("{id}", opened["id"])
        body = None if route.example is None else json.dumps(route.example)
        async with service.http.request(route.method, path, data=body, allow_redirects=False) as answer:
            status, kind, text = answer.status, answer.content_type, await answer.text()
    schema = route.answers[status]
    if schema is not None:
        assert kind == "application/json"
        check(json.loads(text), schema)
    elif status == 200:
        assert kind == route.content
    assert status == next(iter(route.answers)) or route.path == "/readyz"


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body], ids=lambda route: route.path)
async def test_a_refusal_is_described_too(serve: Any, route: Route) -> None:
    async with serve(FakeSandbox({}), service_limits=RULES) as service:
        _, opened = await service.post("/v1/sessions", {})
        status, answer = await service.post(route.path.replace("{id}", opened["id"]), {"unknown": 1})
    schema = route.answers.get(status) or ("Failure" if route.path.startswith("/v1/") else "ServiceErrorBody")
    check(answer, schema)
    assert status in (400, 422)


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
async def test_the_token_is_asked_for_where_the_description_says(serve: Any, path: str) -> None:
    (route, *_) = [route for route in ROUTES if route.path == path]
    async with serve(FakeSandbox({}), token="0123456789abcdef") as service:
        async with service.http.request(route.method, path, allow_redirects=False) as answer:
            status, text = answer.status, await answer.text()
    assert (status != 401) == route.open
    if not route.open:
        check(json.loads(text), "Failure" if path.startswith("/v1/") else "ServiceErrorBody")


ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 5.5, 20, 20.1, 1e9 + 0.5, 2**63, "", "x", "auto", "python", "batch", {"x": 1}),
    *({}, {"a": "YQ=="}, {"a": None}, {"a": 1}, {"wall_s": 1.0}, {"wall_s": 0}, {"wall_s": None}, [], [1]),
    *({"cpu_s": 1.5}, [{}], [{"code": "x"}], [{"type": "python", "solution": "x"}], ["x"], ["x"] * 1001),
)
MODELS = {model.type.__name__: model for model in body_models(RULES)}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_is_described_is_taken_and_nothing_else(name: str) -> None:
    model = MODELS[name]
    example = next(route.example for route in ROUTES if route.body == name)
    for field in (*(item.name for item in msgspec.structs.fields(model.type)), "unknown"):
        for odd in ODD:
            value = {**example, field: odd}
            taken = not list(find_field_errors(value, model.type))
            assert taken != fails(value, name), f"{field} is {odd!r}"
        if field in example:
            rest = {other: example[other] for other in example if other != field}
            assert (not list(find_field_errors(rest, model.type))) != fails(rest, name), f"without {field}"


def test_the_bounds_are_those_of_the_service() -> None:
    assert not fails({"wall_s": 20.0}, "Limits")
    assert fails({"wall_s": 20.1}, "Limits") and fails({"wall": 1}, "Limits")
    assert fails({"code": "", "flavour": "ruby"}, "Run") and not fails({"code": "", "flavour": "auto"}, "Run")
    limits = DOCUMENT["components"]["schemas"]["Limits"]["properties"]
    assert {name: limit["default"] for name, limit in limits.items()} == {
        name: getattr(Limits(), name) for name in Limits.__dataclass_fields__
    }
