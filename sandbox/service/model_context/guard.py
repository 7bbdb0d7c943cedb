"""Authentication and bodies of MCP requests over HTTP.

request --> Guard: token -> 401; a web page, or a foreign name of this machine -> 403
              |     an owner whose connections are all busy -> 429
              |     a body that is too large -> 413
              |     a body larger than `MOST_IN_LOOP_BYTES`: another process takes out the long texts of the
              |     call and marks their places, and tools.py puts them back; the SDK parses the rest
              +--> the SDK's application

The SDK parses bodies in its event loop, which a large one would block.
"""

import base64
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rocstar.sandbox.http.bodies import BodyReader
from rocstar.sandbox.http.connections import ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.errors import STATUS_OF_KIND, RequestError
from rocstar.sandbox.http.guard import Owners, authenticate, run_name
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
    `stdin` of a call, and its files as bytes. Raises RequestError for invalid JSON, and if the
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

    params = message.get("params") if isinstance(message, dict) else None
    arguments = params.get("arguments") if isinstance(params, dict) else None
    if not isinstance(arguments, dict):  # no call
        arguments = {}
    for name in ("code", "stdin"):
        if _is_long(arguments.get(name)):
            arguments[name] = mark(arguments[name])
    if _is_long(arguments.get("content_base64")):
        content = arguments["content_base64"]
        with suppress(ValueError):  # the tool rejects invalid base64
            content = base64.b64decode(content, validate=True)
        arguments["content_base64"] = mark(content)
    files = arguments.get("files")
    if isinstance(files, dict):
        long = {name: mark(text.encode("utf-8", "replace")) for name, text in files.items() if _is_long(text)}
        arguments["files"] = {**files, **long}
    light = json.dumps(message).encode()
    if len(light) > MOST_IN_LOOP_BYTES:
        found, most = len(light), MOST_IN_LOOP_BYTES
        message = f"the request has {found} bytes besides code, stdin and files; at most {most} are read"
        raise RequestError(message, kind="too_large")
    return light, texts


def _is_long(text: object) -> bool:
    return isinstance(text, str) and len(text) > LONG_CHARS


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

MAX_HELD_BYTES = 256 << 20
"""The maximum size of the bodies of all active requests."""


@dataclass(eq=False)
class McpGuard:
    """An ASGI middleware. Invariant: rejected requests do not reach the inner application."""

    inner: ASGIApp
    owners: Owners
    connections: ConnectionLimiter
    readiness: ReadinessProbe
    body_reader: BodyReader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        headers, connection = Headers(scope=scope), scope["state"].get(CONNECTION)
        if scope["path"] in PROBES:
            await (await self._probe_response(scope))(scope, receive, send)
            return
        if (error := self._refusal(scope, headers)) is not None:
            await error(scope, receive, send)
            return
        owner = authenticated_owner(self.owners, headers)
        try:
            self.connections.begin_request(connection, owner)
        except ConnectionsExhausted as full:
            await error_response(STATUS_OF_KIND["full"], str(full))(scope, receive, send)
            return
        request = McpRequest(owner, headers, receive)
        try:
            body, texts = await self.body_reader.read(request), NO_TEXTS
            if len(body) > MOST_IN_LOOP_BYTES:
                body, texts = await self.body_reader.decode(owner, body, extract_long_texts)
            scope["state"][TEXTS] = texts
        except RequestError as refused:
            await error_response(refused.status, str(refused), {"Connection": "close"})(scope, receive, send)
        else:
            await self.inner(scope, _replay_body(body, receive), send)
        finally:
            self.body_reader.release(request)
            self.connections.end_request(connection)

    async def _probe_response(self, scope: Scope) -> Response:
        """Return the response of a probe, which needs no token."""
        if scope["method"] not in ("GET", "HEAD"):
            return error_response(405, "ask by GET")
        if scope["path"] == "/healthz":
            return JSONResponse({"status": "ok"})
        is_ready = not await self.readiness.problem()
        return JSONResponse({"ready": is_ready}, status_code=200 if is_ready else 503)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        try:
            authenticate(self.owners, headers, headers.get("host", ""))
            if not self.owners:
                run_name(headers)
        except RequestError as error:
            return error_response(error.status, str(error), error.headers())
        if scope["path"].rstrip("/") != PATH:
            return error_response(404, f"there is {PATH} and nothing else")
        # A proxy may have read it the other way.
        if "transfer-encoding" in headers and "content-length" in headers:
            return error_response(400, "give Content-Length or Transfer-Encoding, not both", {"Connection": "close"})
        return None


@dataclass(eq=False)
class McpRequest:
    """A request of ASGI, for `BodyReader`; it is its own `content`."""

    owner: str
    headers: Headers
    receive: Receive
    held_bytes: int = 0
    _has_more: bool = True

    @property
    def content(self) -> "McpRequest":
        return self

    @property
    def content_length(self) -> int | None:
        length = self.headers.get("content-length", "")
        return int(length[:20]) if length.isdecimal() else None

    def is_eof(self) -> bool:
        return False  # nothing was received before

    def at_eof(self) -> bool:
        return not self._has_more

    async def readany(self) -> bytes:
        """Return the next chunk, or b"" at the end. Raises RequestError for an incomplete body."""
        chunk = b""
        while self._has_more and not chunk:
            message = await self.receive()
            if message["type"] != "http.request":
                raise RequestError("the body ends early")
            chunk, self._has_more = message.get("body", b""), message.get("more_body", False)
        return chunk


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
