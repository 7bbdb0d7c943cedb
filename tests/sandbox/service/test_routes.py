"""Routing: the matches of aiohttp's dispatcher, cached."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from rocstar.sandbox.http import routes as module
from rocstar.sandbox.http.routes import UNKNOWN_ROUTE, HttpRequest, HttpRoute, Routes


async def nothing(request: HttpRequest) -> web.Response:
    return web.Response()


async def something(request: HttpRequest) -> web.Response:
    return web.Response()


def made() -> Routes:
    return Routes(
        [
            HttpRoute("GET", "/healthz", nothing),
            HttpRoute("POST", "/v1/sessions/{id}/run", something),
            HttpRoute("GET", "/v1/sessions/{id}/files/{name:.+}", nothing, head=False),
        ]
    )


async def test_what_was_found_once_is_known() -> None:
    routes, request = made(), make_mocked_request("POST", "/v1/sessions/a%20b/run?x=1")
    assert not routes._known
    found = await routes.find(request)
    assert (found.handler, found.place, found.names) == (something, "/v1/sessions/{id}/run", {"id": "a b"})
    assert not found.open
    assert await routes.find(make_mocked_request("POST", "/v1/sessions/a%20b/run?x=1")) is found
    assert await routes.find(make_mocked_request("GET", "/v1/sessions/a%20b/run?x=1")) is not found
    assert (await routes.find(make_mocked_request("GET", "/healthz"))).open


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [("GET", "/v1/other", 404), ("DELETE", "/healthz", 405), ("HEAD", "/v1/sessions/a/files/b", 405)],
)
async def test_what_has_no_route_says_so_each_time_and_is_not_remembered(
    method: str, target: str, status: int
) -> None:
    routes = made()
    for _ in range(2):
        found = await routes.find(make_mocked_request(method, target))
        assert found.place == UNKNOWN_ROUTE and not routes._known
        with pytest.raises(web.HTTPException) as error:
            await found.handler(make_mocked_request(method, target))
        assert error.value.status == status


async def test_so_many_targets_are_remembered_and_none_that_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED", 3)
    routes = made()
    targets = [f"/v1/sessions/{number}/run" for number in range(7)]
    for target in targets:
        await routes.find(make_mocked_request("POST", target))
        assert ("POST", target) in routes._known and len(routes._known) <= 3
    long = f"/v1/sessions/{'a' * 300}/run"
    assert (await routes.find(make_mocked_request("POST", long))).names == {"id": "a" * 300}
    assert ("POST", long) not in routes._known


async def test_a_path_of_thousands_of_parts_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolving one takes 9 ms."""
    routes = made()
    found = await routes.find(make_mocked_request("GET", "/v1/sessions/a/files/" + "/".join("a" * 100)))
    assert found.handler is nothing

    async def looked(request: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(routes._dispatcher, "resolve", looked)
    for target in ("/" * 4000, "/v1/sessions/a/files" + "/a" * 2000):
        found = await routes.find(make_mocked_request("GET", target))
        assert (found.place, found.open) == (UNKNOWN_ROUTE, False)
        with pytest.raises(web.HTTPNotFound):
            await found.handler(make_mocked_request("GET", target))


async def test_a_slash_at_the_end_makes_no_other_path() -> None:
    found = await made().find(make_mocked_request("POST", "/v1/sessions/a%20b/run/"))
    assert (found.place, dict(found.names)) == ("/v1/sessions/{id}/run", {"id": "a b"})
    assert (await made().find(make_mocked_request("GET", "/v2/"))).place == UNKNOWN_ROUTE
