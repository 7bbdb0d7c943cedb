"""Who may call over HTTP: a right token, and without any only this machine's own programs.

request --> Guard: token -> 401; a web page, or another's name for this machine -> 403
              |     an owner whose share of connections is busy -> 429
              |     a body that is too large -> 413; large ones lightened in another process (bodies.py)
              +--> the SDK's own
"""

import asyncio
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rocstar.sandbox.loopback.door import Door, DoorFull
from rocstar.sandbox.loopback.shares import Shares
from rocstar.sandbox.loopback.tokens import Owners
from rocstar.sandbox.service import auth
from rocstar.sandbox.service.auth import refuse_web_pages
from rocstar.sandbox.service.errors import Full, Refused, TooLarge
from rocstar.sandbox.service.incoming import Incoming
from rocstar.sandbox.service.model_context.bodies import MOST_IN_LOOP_BYTES, NO_TEXTS, LongTexts, lightened
from rocstar.sandbox.service.readiness import Readiness

PATH = "/mcp"
PROBES = ("/healthz", "/readyz")
REFUSED = -32000
"""Of JSON-RPC's codes the first that is a server's own."""

CONNECTION = "rocstar.connection"
"""Where a request says which connection it came by."""

TEXTS = "rocstar.texts"
"""Where it has the texts that its body only marks."""

BODY_S = 60.0
"""The time that a body has to arrive."""

SLOW = f"the body did not arrive within {BODY_S:g} s"
MAX_HELD_BYTES = 256 << 20
"""Of the bodies of all requests under way."""


class Guard:
    """An ASGI application before another. Invariant: nothing of a refused request gets behind it."""

    def __init__(
        self,
        inner: ASGIApp,
        owners: Owners,
        door: Door,
        readiness: Readiness,
        incoming: Incoming,
        *,
        max_body_bytes: int,
    ) -> None:
        self._inner = inner
        self._owners = owners
        self._door = door
        self._readiness = readiness
        self._incoming = incoming
        self._held = Shares(MAX_HELD_BYTES, owners.weights())
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
        owner = owner_of(self._owners, headers)
        try:
            self._door.begins(connection, owner)
        except DoorFull as full:
            await refused(Full.status, str(full))(scope, receive, send)
            return
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_S):
                await self._receive(receive, owner, pieces)
            body, scope["state"][TEXTS] = await self._lightened(owner, b"".join(pieces))
        except (Refused, TimeoutError) as error:
            status, why = (error.status, str(error)) if isinstance(error, Refused) else (408, SLOW)
            await refused(status, why, {"Connection": "close"})(scope, receive, send)
        else:
            await self._inner(scope, _replay(body, receive), send)
        finally:
            self._held.give(owner, sum(map(len, pieces)))
            self._door.ends(connection)

    async def _receive(self, receive: Receive, owner: str, pieces: list[bytes]) -> None:
        """The body in pieces, which count as held. Raises Refused for one that is too large, or cut short."""
        total, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise Refused("the body ends early")
            piece, more = message.get("body", b""), message.get("more_body", False)
            total += len(piece)
            if total > self._max_body_bytes:
                raise TooLarge(f"the body is larger than the {self._max_body_bytes} bytes that are read")
            if not self._held.try_take(owner, len(piece)):
                raise Full("bodies of other requests leave no room for this one; ask again later")
            pieces.append(piece)

    async def _lightened(self, owner: str, body: bytes) -> tuple[bytes, LongTexts]:
        """The body as the SDK is to have it, and the texts that it marks. Raises Refused."""
        if len(body) <= MOST_IN_LOOP_BYTES:
            return body, NO_TEXTS
        return await self._incoming.decoded(owner, body, lightened)

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
            if auth.owner_of(self._owners, headers) is None:
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


def _replay(body: bytes, receive: Receive) -> Receive:
    """What comes to the application that is behind: the body in one piece."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


def refused(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """A refusal in the form of the protocol's errors."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": REFUSED, "message": why}}
    return JSONResponse(error, status_code=status, headers=dict(headers or {}))


def owner_of(owners: Owners, headers: Mapping[str, str] | None) -> str:
    """Of a request that has come past the guard."""
    return owners.of_token(Headers(dict(headers or {}))) or ""
