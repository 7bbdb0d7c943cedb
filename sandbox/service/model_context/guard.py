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
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web
from starlette.types import ASGIApp, Message

from rocstar.sandbox.http import responses
from rocstar.sandbox.http.bodies import BodyReader
from rocstar.sandbox.http.connections import ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.errors import STATUS_OF_KIND, RequestError
from rocstar.sandbox.http.guard import Owners, authenticate, run_name
from rocstar.sandbox.http.routes import HttpRequest
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

TEXTS = "rocstar.texts"
"""The key of a request's extracted texts in its state."""

BODY_S = 60.0
"""The time that a body has to arrive."""

MAX_HELD_BYTES = 256 << 20
"""The maximum size of the bodies of all active requests."""


@dataclass(eq=False)
class McpGuard:
    """The handler of aiohttp's low-level server. Invariant: rejected requests do not reach the SDK's
    application."""

    inner: ASGIApp
    owners: Owners
    connections: ConnectionLimiter
    readiness: ReadinessProbe
    body_reader: BodyReader

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, HttpRequest)
        try:
            if request.path in PROBES:
                return await self._probe_response(request)
            request.owner = authenticate(self.owners, request.headers, request.headers.get("Host", ""))
            if not self.owners:
                run_name(request.headers)
            if request.path.rstrip("/") != PATH:
                raise RequestError(f"there is {PATH} and nothing else", status=404)
            self.connections.begin_request(request.protocol, request.owner)
            if request.headers.get("Expect"):
                self.body_reader.check_head(request)
                await responses.send_continue(request)
            body, texts = await self.body_reader.read(request), NO_TEXTS
            if len(body) > MOST_IN_LOOP_BYTES:
                body, texts = await self.body_reader.decode(request.owner, body, extract_long_texts)
            return await forward(self.inner, request, body, texts)
        except RequestError as error:
            response = error_response(error.status, str(error), error.headers())
        except ConnectionsExhausted as full:
            response = error_response(STATUS_OF_KIND["full"], str(full))
        except web.HTTPExpectationFailed as error:
            response = error_response(error.status, error.text or error.reason)
        except ConnectionError:
            return responses.client_gone_response(request)
        finally:
            self.body_reader.release(request)
            self.connections.end_request(request.protocol)
        if not request.content.is_eof():
            response.force_close()  # the rest of the body is not read
        return response

    async def _probe_response(self, request: HttpRequest) -> web.Response:
        """Return the response of a probe, which needs no token."""
        if request.method not in ("GET", "HEAD"):
            raise RequestError("ask by GET", status=405)
        if request.path == "/healthz":
            return web.json_response({"status": "ok"})
        is_ready = not await self.readiness.problem()
        return web.json_response({"ready": is_ready}, status=200 if is_ready else 503)


async def forward(app: ASGIApp, request: HttpRequest, body: bytes, texts: LongTexts) -> web.StreamResponse:
    """Answer by an application of ASGI. It never sees the client disconnect: that cancels it."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    response = web.StreamResponse()

    async def receive() -> Message:
        return unread.pop() if unread else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response.set_status(message["status"])
            response.headers.extend(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]
            )
            await response.prepare(request)
        else:
            await responses.write(response, message.get("body", b""))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "query_string": request.query_string.encode(),
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "state": {TEXTS: texts},
    }
    await app(scope, receive, send)
    return await responses.finish(response)


def error_response(status: int, why: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an error of the protocol."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": REFUSED, "message": why}}
    return web.json_response(error, status=status, headers=headers)
