"""Authentication and bodies of MCP requests over HTTP.

request --> Guard: token -> 401; a web page, or a foreign name of this machine -> 403
              |     an owner whose connections are all busy -> 429
              |     a body that is too large -> 413
              |     a body larger than `MOST_IN_LOOP_BYTES`: another process takes out the long texts of the
              |     call and marks their places, and tools.py puts them back; the SDK parses the rest
              +--> the SDK's application

The SDK parses bodies in its event loop, which a large one would block.
"""

import asyncio
import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rocstar.sandbox.http.bodies import BodyReader
from rocstar.sandbox.http.connections import ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.errors import Overloaded, RequestError, RequestTooLarge
from rocstar.sandbox.http.guard import Owners, authenticate, run_name
from rocstar.sandbox.http.owner_budget import OwnerBudget
from rocstar.sandbox.service.admission import ReadinessProbe

MOST_IN_LOOP_BYTES = 1 << 16
"""The maximum size of a body that the SDK parses: two milliseconds."""

LONG_CHARS = 1 << 12
"""The minimum length of a text that is taken out."""

LongTexts = Mapping[str, str | bytes]
"""The texts of one request that were taken out, by their marks."""

NO_TEXTS: LongTexts = {}


def extract_long_texts(body: bytes) -> tuple[bytes, LongTexts]:
    """Return a body of at most `MOST_IN_LOOP_BYTES`, and the texts that were replaced by marks: `code` and
    `stdin` of a call, and its files as bytes. Raises RequestError for invalid JSON, RequestTooLarge if the
    rest is too large."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {str(error)[:100]}") from None
    texts: dict[str, str | bytes] = {}

    def mark(text: str | bytes) -> str:
        name = secrets.token_hex(16)
        texts[name] = text
        return name

    arguments = _call_arguments(message)
    for name in ("code", "stdin"):
        if _is_long(arguments.get(name)):
            arguments[name] = mark(arguments[name])
    if _is_long(arguments.get("content_base64")):
        arguments["content_base64"] = mark(_decode_base64(arguments["content_base64"]))
    files = arguments.get("files")
    if isinstance(files, dict):
        long = {name: mark(text.encode("utf-8", "replace")) for name, text in files.items() if _is_long(text)}
        arguments["files"] = {**files, **long}
    light = json.dumps(message).encode()
    if len(light) > MOST_IN_LOOP_BYTES:
        found, most = len(light), MOST_IN_LOOP_BYTES
        raise RequestTooLarge(
            f"the request has {found} bytes besides code, stdin and files; at most {most} are read"
        )
    return light, texts


def _call_arguments(message: Any) -> dict[str, Any]:
    """Return the arguments of a call, or {} for other messages."""
    params = message.get("params") if isinstance(message, dict) else None
    arguments = params.get("arguments") if isinstance(params, dict) else None
    return arguments if isinstance(arguments, dict) else {}


def _is_long(text: object) -> bool:
    return isinstance(text, str) and len(text) > LONG_CHARS


def _decode_base64(text: str) -> str | bytes:
    """Return the content, or the text itself if it is invalid base64, which the tool then rejects."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text


PATH = "/mcp"
PROBES = ("/healthz", "/readyz")
REFUSED = -32000
"""The first of JSON-RPC's codes for errors of a server."""

CONNECTION = "rocstar.connection"
"""The key of a request's connection in its state."""

TEXTS = "rocstar.texts"
"""The key of a request's extracted texts in its state."""

BODY_S = 60.0
"""The time that a body has to arrive."""

SLOW = f"the body did not arrive within {BODY_S:g} s"
MAX_HELD_BYTES = 256 << 20
"""The maximum size of the bodies of all active requests."""


class McpGuard:
    """An ASGI middleware. Invariant: rejected requests do not reach the inner application."""

    def __init__(
        self,
        inner: ASGIApp,
        owners: Owners,
        connections: ConnectionLimiter,
        readiness: ReadinessProbe,
        body_reader: BodyReader,
        *,
        max_body_bytes: int,
    ) -> None:
        self._inner = inner
        self._owners = owners
        self._connections = connections
        self._readiness = readiness
        self._body_reader = body_reader
        self._held = OwnerBudget(MAX_HELD_BYTES, owners.weights())
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers, connection = Headers(scope=scope), scope["state"].get(CONNECTION)
        if scope["path"] in PROBES:
            await (await self._probed(scope))(scope, receive, send)
            return
        if (error := self._refusal(scope, headers)) is not None:
            await error(scope, receive, send)
            return
        owner = authenticated_owner(self._owners, headers)
        try:
            self._connections.begin_request(connection, owner)
        except ConnectionsExhausted as full:
            await error_response(Overloaded.status, str(full))(scope, receive, send)
            return
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_S):
                await self._receive(receive, owner, pieces)
            body, scope["state"][TEXTS] = await self._lightened(owner, b"".join(pieces))
        except (RequestError, TimeoutError) as error:
            status, why = (error.status, str(error)) if isinstance(error, RequestError) else (408, SLOW)
            await error_response(status, why, {"Connection": "close"})(scope, receive, send)
        else:
            await self._inner(scope, _replay_body(body, receive), send)
        finally:
            self._held.give(owner, sum(map(len, pieces)))
            self._connections.end_request(connection)

    async def _receive(self, receive: Receive, owner: str, pieces: list[bytes]) -> None:
        """Receive the body in chunks, which count as held. Raises RequestError for one that is too large or
        incomplete."""
        total, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise RequestError("the body ends early")
            piece, more = message.get("body", b""), message.get("more_body", False)
            total += len(piece)
            if total > self._max_body_bytes:
                raise RequestTooLarge(
                    f"the body is larger than the {self._max_body_bytes} bytes that are read"
                )
            if not self._held.try_take(owner, len(piece)):
                raise Overloaded("bodies of other requests leave no room for this one; ask again later")
            pieces.append(piece)

    async def _lightened(self, owner: str, body: bytes) -> tuple[bytes, LongTexts]:
        """Return the body for the SDK, and the texts that were taken out. Raises RequestError."""
        if len(body) <= MOST_IN_LOOP_BYTES:
            return body, NO_TEXTS
        return await self._body_reader.decode(owner, body, extract_long_texts)

    async def _probed(self, scope: Scope) -> Response:
        """Return the response of a probe, which needs no token."""
        if scope["method"] not in ("GET", "HEAD"):
            return error_response(405, "ask by GET")
        if scope["path"] == "/healthz":
            return JSONResponse({"status": "ok"})
        is_ready = not await self._readiness.problem()
        return JSONResponse({"ready": is_ready}, status_code=200 if is_ready else 503)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        try:
            authenticate(self._owners, headers, headers.get("host", ""))
            if not self._owners:
                run_name(headers)
        except RequestError as error:
            return error_response(error.status, str(error), error.headers())
        if scope["path"].rstrip("/") != PATH:
            return error_response(404, f"there is {PATH} and nothing else")
        # A proxy may have read it the other way.
        if "transfer-encoding" in headers and "content-length" in headers:
            return error_response(
                400, "give Content-Length or Transfer-Encoding, not both", {"Connection": "close"}
            )
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._max_body_bytes:
            text = f"the body has {length[:20]} bytes; at most {self._max_body_bytes} are read"
            return error_response(413, text, {"Connection": "close"})
        return None


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that passes the body to the inner application in one message."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


def error_response(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error of the protocol."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": REFUSED, "message": why}}
    return JSONResponse(error, status_code=status, headers=dict(headers or {}))


def authenticated_owner(owners: Owners, headers: Mapping[str, str] | None) -> str:
    """Return the owner of an authenticated request."""
    return owners.find_owner(Headers(dict(headers or {}))) or ""
