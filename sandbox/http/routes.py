"""Routing of requests to handlers.

    method and target --> cached: the handler found before
                      --> else: aiohttp's dispatcher resolves it, and the match is cached

All cells of a session have one target, and aiohttp's dispatcher takes thirty function calls to resolve it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from aiohttp import web

from rocstar.sandbox.http.malformed import RenderError, protocol_factory

NO_PATH_PARAMS: Mapping[str, str] = MappingProxyType({})


class HttpRequest(web.Request):
    """A request of aiohttp with the service's data.

    Attributes:
        owner: The owner of the request; "" if none is known.
        place: The path of its route, or UNKNOWN_ROUTE.
        names: The named parts of the path.
        held_bytes: The bytes of its body that count as held (see `BodyReader`).
    """

    ATTRS = web.Request.ATTRS | frozenset(("owner", "place", "names", "held_bytes"))

    owner: str = ""
    place: str = ""
    names: Mapping[str, str] = NO_PATH_PARAMS
    held_bytes: int = 0


READ_BYTES = 1 << 16
"""The buffer of a body before it is read; twice as much pauses reading, or a sixteenth as many chunks. In
chunks of one byte each takes a microsecond."""

MAX_HEADERS = 64


@asynccontextmanager
async def open_server(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    refused: RenderError,
    *,
    shutdown_s: float,
    **logging: Any,
) -> AsyncIterator[Callable[[], asyncio.Protocol]]:
    """Yield the factory of the connections' protocols of aiohttp's low-level server, whose requests are
    `HttpRequest`. When the block exits, all requests have ended.

    Args:
        refused: renders errors of requests that are not HTTP.
        shutdown_s: the time for active requests at the exit.
        logging: aiohttp's options of the access log; without any there is none.
    """
    server = web.Server(
        handler,
        request_factory=partial(HttpRequest, loop=asyncio.get_running_loop()),
        handler_cancellation=True,
        max_headers=MAX_HEADERS,
        read_bufsize=READ_BYTES,
        auto_decompress=False,  # aiohttp would inflate a body before its size is counted
        **{"access_log": None, **logging},
    )
    runner = web.ServerRunner(server, shutdown_timeout=shutdown_s)
    await runner.setup()
    try:
        yield protocol_factory(server, refused)
    finally:
        await runner.cleanup()


Handler = Callable[[HttpRequest], Awaitable[web.StreamResponse]]
OPEN_PATHS = frozenset(("/healthz", "/readyz", "/ping", "/openapi.json"))
"""The paths without authentication: they return nothing about programs, and probes send no token."""

UNKNOWN_ROUTE = "unknown"
"""The `place` of a target without a route."""

MAX_CACHED = 8192
"""Targets that are remembered: more than there are sessions."""

MAX_TARGET_CHARS = 256
MAX_PARTS = 128
"""The maximum number of parts of a path: file names have at most a hundred, and the dispatcher tries each
prefix."""


class HttpRoute(NamedTuple):
    """A route. `path`: aiohttp's syntax, with names in braces. `head`: HEAD is handled like GET."""

    method: str
    path: str
    handler: Handler
    head: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteMatch:
    """The route of a target.

    Args:
        handler: The handler; for a target without a route it raises the HTTPException.
        place: The path of the route, for the metrics, or UNKNOWN_ROUTE.
        names: The named parts of the path.
        open: No token is needed.
    """

    handler: Handler
    place: str
    names: Mapping[str, str]
    open: bool


class Routes:
    """Invariants: a match is the match of aiohttp's dispatcher, also for a path with a final slash; at most
    `MAX_CACHED` targets are cached, and all of them have a route."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self._dispatcher = web.UrlDispatcher()
        for route in routes:
            handler: Any = route.handler  # aiohttp knows no requests but its own
            if route.method == "GET":
                self._dispatcher.add_get(route.path, handler, allow_head=route.head)
            else:
                self._dispatcher.add_route(route.method, route.path, handler)
        self._dispatcher.freeze()
        self._known: dict[tuple[str, str], RouteMatch] = {}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Method and path of each."""
        for route in self._dispatcher.routes():
            assert route.resource is not None
            yield route.method, route.resource.canonical

    async def find(self, request: HttpRequest) -> RouteMatch:
        known = self._known.get((request.method, request.raw_path))
        if known is not None:
            return known
        if request.rel_url.raw_path.count("/") > MAX_PARTS:
            return RouteMatch(handler=_not_found, place=UNKNOWN_ROUTE, names=NO_PATH_PARAMS, open=False)
        found = await self._dispatcher.resolve(request)
        if found.route.resource is None and len(request.path) > 1 and request.path.endswith("/"):
            path = request.rel_url.raw_path.rstrip("/")
            found = await self._dispatcher.resolve(
                request.clone(rel_url=request.rel_url.with_path(path, encoded=True))
            )
        resource = found.route.resource
        handler: Any = found.handler
        made = RouteMatch(
            handler=handler,
            place=resource.canonical if resource else UNKNOWN_ROUTE,
            names=dict(found) if resource else NO_PATH_PARAMS,
            open=request.path in OPEN_PATHS,
        )
        if resource and len(request.raw_path) <= MAX_TARGET_CHARS:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[request.method, request.raw_path] = made
        return made


async def _not_found(request: HttpRequest) -> web.StreamResponse:
    raise web.HTTPNotFound
