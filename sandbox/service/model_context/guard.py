"""Who may call over HTTP: a right token, and without any only this machine's own programs.

request --> Guard: token -> 401; a web page, or another's name for this machine -> 403
              |     an owner whose share of connections is busy -> 429
              +--> the SDK's own
"""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rocstar.sandbox.door import Door, DoorFull
from rocstar.sandbox.service.auth import Owners, refuse_web_pages
from rocstar.sandbox.service.errors import Full, Refused

CONNECTION = "rocstar.connection"
"""Where a request says which connection it came by."""


class Guard:
    """An ASGI application before another. Invariant: nothing of a refused request gets behind it."""

    def __init__(self, inner: ASGIApp, owners: Owners, door: Door) -> None:
        self._inner = inner
        self._owners = owners
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers, connection = Headers(scope=scope), scope["state"].get(CONNECTION)
        if (refusal := self._refusal(headers)) is not None:
            await refusal(scope, receive, send)
            return
        try:
            self._door.begins(connection, owner_of(self._owners, headers))
        except DoorFull as full:
            await PlainTextResponse(str(full), status_code=Full.status)(scope, receive, send)
            return
        try:
            await self._inner(scope, receive, send)
        finally:
            self._door.ends(connection)

    def _refusal(self, headers: Headers) -> PlainTextResponse | None:
        try:
            if not self._owners:
                refuse_web_pages(headers, headers.get("host", ""))
            if self._owners.of(headers) is not None:
                return None
        except Refused as error:
            return PlainTextResponse(str(error), status_code=error.status)
        told = {"WWW-Authenticate": "Bearer"}
        text = "give the server's token as `Authorization: Bearer TOKEN`"
        return PlainTextResponse(text, status_code=401, headers=told)


def owner_of(owners: Owners, headers: Mapping[str, str] | None) -> str:
    """Of a request that has come past the guard."""
    return (owners.of(Headers(dict(headers or {}))) or "") if owners else ""
