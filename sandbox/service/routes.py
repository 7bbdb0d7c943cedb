"""Which handler answers a request.

    method and target --> known: the same handler as before
                      --> not yet: aiohttp's dispatcher looks for it, and what it finds is remembered

The cells of a session have one target, and looking for its handler takes thirty calls of functions.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiohttp import web

from rocstar.sandbox.service.request import NO_NAMES, HttpRequest

Handler = Callable[[HttpRequest], Awaitable[web.StreamResponse]]

OPEN_PATHS = frozenset(("/healthz", "/readyz", "/ping", "/", "/docs", "/openapi.json"))
"""Paths that need no token: they tell nothing of any program, and a browser that opens a page sends none."""

UNKNOWN = "unknown"
"""The place of what has no route."""

MAX_KNOWN = 8192
"""Targets that are remembered: more than there are sessions."""

MAX_TARGET_CHARS = 256

MAX_PARTS = 128
"""Of a path: names of files have a hundred at most, and the dispatcher looks for each beginning of a path."""


class HttpRoute(NamedTuple):
    """`path`: as aiohttp has it, with names in braces. `head`: whether HEAD asks for the same as GET."""

    method: str
    path: str
    handler: Handler
    head: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of a target.

    Args:
        handler: Who answers. Of what has no route: it raises the HTTPException that says so.
        place: The path of the route, for counting, or UNKNOWN.
        names: The parts of the path that its route has names for.
        open: Whether no token is needed.
    """

    handler: Handler
    place: str
    names: Mapping[str, str]
    open: bool


class Routes:
    """Invariants: what is found is what aiohttp's dispatcher finds, also without a slash
    at the end; at most `MAX_KNOWN` targets are remembered, all of which have a route."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self._dispatcher = web.UrlDispatcher()
        for route in routes:
            handler: Any = route.handler  # aiohttp knows no requests but its own
            if route.method == "GET":
                self._dispatcher.add_get(route.path, handler, allow_head=route.head)
            else:
                self._dispatcher.add_route(route.method, route.path, handler)
        self._dispatcher.freeze()
        self._known: dict[tuple[str, str], Found] = {}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Method and path of each."""
        for route in self._dispatcher.routes():
            assert route.resource is not None
            yield route.method, route.resource.canonical

    def known(self, request: HttpRequest) -> Found | None:
        """What was found for the same target before."""
        return self._known.get((request.method, request.raw_path))

    async def find(self, request: HttpRequest) -> Found:
        if request.rel_url.raw_path.count("/") > MAX_PARTS:
            return Found(handler=_nowhere, place=UNKNOWN, names=NO_NAMES, open=False)
        found = await self._dispatcher.resolve(request)
        if found.route.resource is None and len(request.path) > 1 and request.path.endswith("/"):
            path = request.rel_url.raw_path.rstrip("/")
            found = await self._dispatcher.resolve(
                request.clone(rel_url=request.rel_url.with_path(path, encoded=True))
            )
        resource = found.route.resource
        handler: Any = found.handler
        made = Found(
            handler=handler,
            place=resource.canonical if resource else UNKNOWN,
            names=dict(found) if resource else NO_NAMES,
            open=request.path in OPEN_PATHS,
        )
        if resource and len(request.raw_path) <= MAX_TARGET_CHARS:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[request.method, request.raw_path] = made
        return made


async def _nowhere(request: HttpRequest) -> web.StreamResponse:
    raise web.HTTPNotFound
