"""Who may call over HTTP: a right token, and without any only this machine's own programs.

request --> Guard: token -> 401; a web page, or another's name for this machine -> 403
              |     an owner whose share of connections is busy -> 429
              +--> the SDK's own
"""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rocstar.sandbox.loopback.door import Door, DoorFull
from rocstar.sandbox.service.auth import Owners, refuse_web_pages
from rocstar.sandbox.service.errors import Full, Refused
from rocstar.sandbox.service.readiness import Readiness

PATH = "/mcp"
PROBES = ("/healthz", "/readyz")
REFUSED = -32000
"""Of JSON-RPC's codes the first that is a server's own."""

CONNECTION = "rocstar.connection"
"""Where a request says which connection it came by."""


class Guard:
    """An ASGI application before another. Invariant: nothing of a refused request gets behind it."""

    def __init__(
        self, inner: ASGIApp, owners: Owners, door: Door, readiness: Readiness, *, max_body_bytes: int
    ) -> None:
        self._inner = inner
        self._owners = owners
        self._door = door
        self._readiness = readiness
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers, connection = Headers(scope=scope), scope["state"].get(CONNECTION)
        if scope["path"] in PROBES:
            await (await self._probed(scope))(scope, receive, send)
            return
        if (refusal := self._refusal(scope, headers)) is not None:
            await refusal(scope, receive, send)
            return
        try:
            self._door.begins(connection, owner_of(self._owners, headers))
        except DoorFull as full:
            await refused(Full.status, str(full))(scope, receive, send)
            return
        try:
            await self._inner(scope, receive, send)
        finally:
            self._door.ends(connection)

    async def _probed(self, scope: Scope) -> Response:
        """For a kubelet, which has no token: yes or no."""
        if scope["method"] not in ("GET", "HEAD"):
            return refused(405, "ask by GET")
        if scope["path"] == "/healthz":
            return JSONResponse({"status": "ok"})
        is_ready = not await self._readiness.problem()
        return JSONResponse({"ready": is_ready}, status_code=200 if is_ready else 503)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        try:
            if not self._owners:
                refuse_web_pages(headers, headers.get("host", ""))
            if self._owners.of(headers) is None:
                text = "give the server's token as `Authorization: Bearer TOKEN`"
                return refused(401, text, {"WWW-Authenticate": "Bearer"})
        except Refused as error:
            return refused(error.status, str(error))
        if scope["path"].rstrip("/") != PATH:
            return refused(404, f"there is {PATH} and nothing else")
        # A proxy may have read it the other way.
        if "transfer-encoding" in headers and "content-length" in headers:
            return refused(400, "give Content-Length or Transfer-Encoding, not both", {"Connection": "close"})
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._max_body_bytes:
            text = f"the body has {length[:20]} bytes; at most {self._max_body_bytes} are read"
            return refused(413, text, {"Connection": "close"})
        return None


def refused(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal in the form of the protocol's errors."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": REFUSED, "message": why}}
    return JSONResponse(error, status_code=status, headers=dict(headers or {}))


def owner_of(owners: Owners, headers: Mapping[str, str] | None) -> str:
    """Of a request that has come past the guard."""
    return (owners.of(Headers(dict(headers or {}))) or "") if owners else ""
