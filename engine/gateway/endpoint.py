"""HTTP of the gateway: one handler for all dialects, and a loopback server of the sessions of a run.

    request ──key or path──> AgentSession ──body──> dialect.read ──> sample ──> dialect.write | dialect.stream
                                                                 └─ while it is sampled, a stream gets pings

An answer is delivered when its last byte was written. A client that disconnects earlier may ask again.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any, Protocol

from aiohttp import web

from rocstar.engine.gateway.dialects import anthropic_messages, chat, completions, generate, responses
from rocstar.engine.gateway.dialects.events import encode_json, error_object
from rocstar.engine.gateway.dialects.fields import Fields, num_unknown_bytes
from rocstar.engine.gateway.messages import Request, SampledTurn
from rocstar.engine.gateway.session import Sessions
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.http.guard import parse_bearer_token
from rocstar.sandbox.http.listening import BACKLOG, Address, bind, listen
from rocstar.sandbox.http.responses import JSON, HttpResponse, client_gone_response, json_response, send, send_continue
from rocstar.sandbox.http.routes import HttpRequest, HttpRoute, Routes, open_server

STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold parts back
}
SMALL_BYTES = 16 << 10
"""Less than what may wait in a connection before its writer does."""
JOINED_APART_BYTES = 1 << 20
MAX_BODY_BYTES, BODY_TIMEOUT_S, WRITE_TIMEOUT_S, PING_S = 16 << 20, 30.0, 60.0, 10.0
"""Limits of a run's gateway, and the time after which a waiting stream gets a ping."""
LOOPBACK = Address(hosts=("127.0.0.1",), port=0)
SESSION = "/sessions/{key}"
"""The prefix of paths that name their session."""


class Dialect(Protocol):
    """A request and answer format."""

    @property
    def PING(self) -> bytes: ...
    def read(self, given: Fields, /) -> Request: ...
    def write(self, sample: SampledTurn, /) -> dict[str, Any]: ...
    def stream(self, sample: SampledTurn, /) -> Iterator[bytes]: ...
    def error(self, problem: RequestError, /) -> dict[str, Any]: ...
    def failed(self, problem: RequestError, /) -> bytes: ...


COUNT_TOKENS = "/v1/messages/count_tokens"
DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/responses": responses,
    "/v1/messages": anthropic_messages,
    COUNT_TOKENS: anthropic_messages,
    "/inference/v1/generate": generate,
}
"""The dialect of each route."""


class Gateway:
    """The sessions of a run behind HTTP. `url`: the address, once it listens."""

    def __init__(self, sessions: Sessions, *, model: str, max_context: int | None) -> None:
        self.sessions, self.model, self.max_context, self.ping_s = sessions, model, max_context, PING_S
        self.url = ""
        self.routes = Routes(self._routes())

    def _routes(self) -> Iterator[HttpRoute]:
        for prefix in ("", SESSION):
            for path in DIALECTS:
                yield HttpRoute("POST", prefix + path, self.sample)
            yield HttpRoute("GET", f"{prefix}/v1/models", self.models)
            yield HttpRoute("GET", prefix + "/v1/models/{model:.+}", self.models)
        yield HttpRoute("GET", "/", self.alive)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request, also one that fails or whose client has gone."""
        assert isinstance(request, HttpRequest)
        found = await self.routes.find(request)
        request.place, request.names = found.place, found.names
        try:
            if request.headers.get("Expect"):
                await send_continue(request)
            return await found.handler(request)
        except RequestError as problem:
            return error_response(request, problem)
        except ConnectionError:
            return client_gone_response(request)

    async def sample(self, request: HttpRequest) -> web.StreamResponse:
        """Every route of a dialect."""
        session = self.sessions.find(session_key(request))
        route = route_of(request)
        dialect = DIALECTS[route]
        body = await read_body(request, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_TIMEOUT_S)
        known = session.known.setdefault(route, {})
        if len(body) > SMALL_BYTES and num_unknown_bytes(body, known) > SMALL_BYTES:
            known = {}  # the thread's alone: another request of the session may read at the same time
            asked = await asyncio.to_thread(lambda: dialect.read(Fields.of_body(body, known)))
            session.known[route] = known
        else:
            asked = dialect.read(Fields.of_body(body, known))
        if route == COUNT_TOKENS:
            prompt = await asyncio.to_thread(session.graph.prompt, asked)
            return json_response({"input_tokens": len(prompt.ids)})
        digest = hashlib.blake2b(route.encode() + b"\0" + body, digest_size=16).digest()
        response = await send_sample(request, dialect, asked, session.sample(asked, digest), ping_s=self.ping_s)
        session.delivered(digest)
        return response

    async def models(self, request: HttpRequest) -> web.Response:
        """/v1/models and /v1/models/NAME: any name is served."""
        self.sessions.find(session_key(request))
        name = request.names.get("model")
        model = {"id": name or self.model, "object": "model", "owned_by": "rocstar", "max_model_len": self.max_context}
        return json_response(model if name else {"object": "list", "data": [model]})

    async def alive(self, request: HttpRequest) -> web.Response:
        """/, which some clients ask for by HEAD."""
        return json_response({"status": "ok"})


@contextlib.asynccontextmanager
async def open_gateway(
    sessions: Sessions, *, model: str, max_context: int | None, address: Address = LOOPBACK
) -> AsyncIterator[Gateway]:
    """Serve the sessions while the block runs. ValueError for an address in use."""
    gateway = Gateway(sessions, model=model, max_context=max_context)
    with contextlib.ExitStack() as stack:
        listening = bind(address)
        for one in listening:
            stack.callback(one.close)
        async with open_server(gateway.answer, malformed_response, shutdown_s=1.0) as make_protocol:
            gateway.url = listen(listening)[0]
            with contextlib.ExitStack() as servers:
                for one in listening:
                    server = await asyncio.get_running_loop().create_server(make_protocol, sock=one, backlog=BACKLOG)
                    servers.callback(server.close)
                yield gateway


# ---- parts that `rocstar serve` uses, too ----


def malformed_response(status: int, why: str) -> web.Response:
    """Return the error of a request that is not HTTP."""
    problem = RequestError(why, status=status, kind="not_http" if status < 500 else "")
    return web.json_response(error_object(problem), status=status)


def session_key(request: HttpRequest) -> str:
    """The key of the session that a request names: in its path, as a bearer token, or as an API key."""
    return request.names.get("key") or parse_bearer_token(request.headers).decode()


def route_of(request: HttpRequest) -> str:
    """The path of a request as in `DIALECTS`, without its session."""
    return request.place.removeprefix(SESSION)


def error_response(request: HttpRequest, problem: RequestError) -> web.Response:
    """Return the response of an error, in the dialect of the route."""
    body = encode_json(DIALECTS.get(route_of(request), chat).error(problem))
    response = web.Response(body=body, status=problem.status, headers=problem.headers(), content_type=JSON)
    if problem.status in (408, 413, 415):
        response.force_close()  # the rest of the body is not read
    return response


def too_large() -> RequestError:
    return RequestError("the body is too large", status=413, kind="body_too_large")


def check_body_head(request: HttpRequest, max_bytes: int) -> None:
    """Raise RequestError for a body that is too large by its head, or is encoded."""
    if (request.content_length or 0) > max_bytes:
        raise too_large()
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(
            f"Content-Encoding is {encoding[:60]!a}; send the body as it is",
            status=415,
            field="Content-Encoding",
            kind="encoded_body",
        )


async def read_body(request: HttpRequest, *, max_bytes: int, timeout_s: float) -> bytes:
    """Return the body. Raises RequestError for one that is too large or does not arrive in time."""
    check_body_head(request, max_bytes)
    if request.content.is_eof() and (request.content_length or 0) <= SMALL_BYTES:
        return request.content.read_nowait()  # it arrived with its head
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > max_bytes:
                    raise too_large()
                chunks.append(chunk)
                await asyncio.sleep(0)  # readany() does not wait for data that has arrived
    except TimeoutError:
        raise RequestError("the body did not arrive in time", status=408, kind="slow_body") from None
    if size < JOINED_APART_BYTES:
        return b"".join(chunks)
    return await asyncio.to_thread(b"".join, chunks)  # joining releases the interpreter's lock


async def write_within(
    request: HttpRequest, response: web.StreamResponse, data: bytes, timeout_s: float = WRITE_TIMEOUT_S
) -> None:
    """Write a part of a response. ConnectionError if the client takes nothing for too long."""
    transport = request.transport
    if transport is not None and not transport.get_write_buffer_size() and len(data) <= SMALL_BYTES:
        await response.write(data)  # a client that took all there was: nothing here can wait
        return
    try:
        async with asyncio.timeout(timeout_s):
            await response.write(data)
    except TimeoutError:
        raise ConnectionResetError("the client does not read its stream") from None


async def send_sample(
    request: HttpRequest,
    dialect: Dialect,
    asked: Request,
    sampling: Coroutine[Any, Any, SampledTurn],
    *,
    ping_s: float = PING_S,
    write_timeout_s: float = WRITE_TIMEOUT_S,
) -> web.StreamResponse:
    """Send an answer, whole or as a stream; return when its last byte is written. A failure behind the first ping
    is an event of the stream. Raises RequestError, and ConnectionError for a client that does not read."""
    if not asked.is_streamed:
        answer = HttpResponse(status=200, body=encode_json(dialect.write(await sampling)))
        whole = await send(request, answer, write_timeout_s)
        await whole.prepare(request)
        await whole.write_eof()
        return whole
    response = web.StreamResponse(headers=STREAM_HEADERS)
    task = asyncio.create_task(sampling)
    try:
        while not (await asyncio.wait([task], timeout=ping_s))[0]:
            if not response.prepared:
                await response.prepare(request)
            await write_within(request, response, dialect.PING, write_timeout_s)
        try:
            sample = task.result()
        except RequestError as problem:
            if not response.prepared:
                raise
            content = dialect.failed(problem)
        else:
            content = b"".join(dialect.stream(sample))
    finally:
        task.cancel()
    if not response.prepared:
        await response.prepare(request)
    await write_within(request, response, content, write_timeout_s)
    await response.write_eof()
    return response
