"""The service: what holds for all of its routes.

    request --> route --> guard (drain, token, origin) --> handler --> response
                            |  Refused -> the dialect's own 4xx
                            |  cancelled -> client gone, its programs are killed

It is the one handler of aiohttp's low-level server, which reads and checks the requests. An application of
aiohttp would look for each request's handler anew, and keep a record of what it found, for which the service
has no use. Start and end of the process are in `serve.py`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from rocstar.sandbox.loopback import hung_up, send_continue
from rocstar.sandbox.loopback.access import Network, logged
from rocstar.sandbox.loopback.apart import Apart
from rocstar.sandbox.loopback.door import Door, DoorFull
from rocstar.sandbox.loopback.malformed import protocols
from rocstar.sandbox.loopback.tokens import Owners
from rocstar.sandbox.service.answers import Healthy, Ready, Refusal
from rocstar.sandbox.service.auth import owner_of, refuse_web_pages
from rocstar.sandbox.service.batches import Batches
from rocstar.sandbox.service.calls import Admission
from rocstar.sandbox.service.code_judge import CodeJudge
from rocstar.sandbox.service.decode_code_judge import JudgeOptions
from rocstar.sandbox.service.errors import Full, Refused, SchemaError, ServiceEnds, Unparsable
from rocstar.sandbox.service.http import JSON, failure_answer, respond, to_json
from rocstar.sandbox.service.idempotency import IdempotencyStore
from rocstar.sandbox.service.incoming import Incoming
from rocstar.sandbox.service.metrics import CONTENT_TYPE, Metrics
from rocstar.sandbox.service.native import Native
from rocstar.sandbox.service.openapi import document
from rocstar.sandbox.service.page import HEADERS, page
from rocstar.sandbox.service.readiness import Readiness
from rocstar.sandbox.service.request import HttpRequest
from rocstar.sandbox.service.routes import UNKNOWN, Found, HttpRoute, Routes
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.service.sandbox_fusion import SandboxFusion
from rocstar.sandbox.service.sessions import SessionTable
from rocstar.sandbox.service.verl_tool import VerlTool
from rocstar.sandbox.types import SandboxError, SessionSandbox

MAX_HEADERS = 64
READ_BYTES = 1 << 16
"""Of a body, before somebody takes it; twice as much stops the reading, or a sixteenth as many chunks. In
chunks of a byte each of these takes a microsecond."""

SHUTDOWN_S = 60.0
"""How long requests under way have at the end, as aiohttp has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What a service is told at its start.

    Args:
        max_calls: calls in flight, beyond which the answer is 429.
        max_body_bytes: the body of one request.
        max_held_bytes: all bodies of requests under way, and again all outputs that wait for the
            rest of their answer.
        body_timeout_s: the time a request's body has to arrive.
        max_connections: of clients, seven eighths of them of such that have shown a token.
        header_timeout_s: the time a new connection has to send a request.
        idle_timeout_s: the time a connection may rest between requests, and a client take nothing of an
            answer.
        owners: who may call, by token; without any everybody may, for loopback only.
        trusted_proxies: peers whose X-Forwarded-For the access log believes.
        num_workers: programs at a time, as /status tells it, of a sandbox that does not say (`capacity`).
    """

    rules: Rules
    judge: JudgeOptions = field(default_factory=JudgeOptions)
    owners: Owners = field(default_factory=Owners)
    trusted_proxies: tuple[Network, ...] = ()
    max_calls: int = 65_536
    max_body_bytes: int = 64 << 20
    max_held_bytes: int = 1 << 30
    body_timeout_s: float = 60.0
    max_connections: int = 4096
    header_timeout_s: float = 10.0
    idle_timeout_s: float = 75.0
    num_workers: int = 1
    session_lease_s: float = 1800.0
    max_sessions: int = 4096
    idempotency_ttl_s: float = 600.0
    idempotency_grace_s: float = 30.0
    max_idempotency_keys: int = 65_536


class Service:
    """The service over one sandbox. `opened` gives what makes the protocols of its connections; after `drain`
    what has not begun is refused."""

    def __init__(self, sandbox: SessionSandbox, options: ServiceOptions) -> None:
        self.options = options
        self.metrics = Metrics(self._told)
        self.draining = False
        self._sandbox = sandbox
        self._owners = options.owners
        self._open_to_all = not options.owners
        weights = options.owners.weights()
        self._incoming = Incoming(
            max_bytes=options.max_body_bytes,
            max_held_bytes=options.max_held_bytes,
            timeout_s=options.body_timeout_s,
            apart=Apart(options.rules, Refused),
            weights=weights,
        )
        self.door = Door(
            max_guests=max(1, options.max_connections * 7 // 8),
            max_strangers=max(1, options.max_connections // 8),
            weights=weights,
            header_s=options.header_timeout_s,
            idle_s=options.idle_timeout_s,
            clock=time.monotonic,
        )
        self.admission = Admission(
            sandbox,
            self.metrics,
            max_in_flight=options.max_calls,
            max_held_chars=options.max_held_bytes,
            weights=weights,
        )
        self.sessions = SessionTable(
            sandbox,
            self.metrics,
            lease_s=options.session_lease_s,
            max_sessions=options.max_sessions,
            weights=weights,
            choose=options.rules.choose,
        )
        self.keys = IdempotencyStore(
            ttl_s=options.idempotency_ttl_s,
            grace_s=options.idempotency_grace_s,
            max_keys=options.max_idempotency_keys,
            weights=weights,
        )
        self._readiness = Readiness(sandbox, options.rules.choose(""))
        self.routes = Routes(self._routes())

    def _routes(self) -> list[HttpRoute]:
        options, rules = self.options, self.options.rules
        native = Native(
            self.admission,
            self.sessions,
            self.keys,
            rules,
            self._incoming,
            write_timeout_s=options.idle_timeout_s,
        )
        batches = Batches(
            self.admission,
            self.keys,
            rules,
            self._incoming,
            write_timeout_s=options.idle_timeout_s,
        )
        judge = CodeJudge(
            self.admission, self.metrics, rules, options.judge, self._incoming, num_workers=self.num_workers
        )
        fusion = SandboxFusion(self.admission, self._sandbox, rules, self._incoming)
        tools = VerlTool(self.admission, self.metrics, rules, self._incoming)
        return [
            *(*native.routes(), *batches.routes(), *judge.routes(), *fusion.routes(), *tools.routes()),
            HttpRoute("GET", "/healthz", self.healthz),
            HttpRoute("GET", "/readyz", self.readyz),
            HttpRoute("GET", "/metrics", self.show_metrics),
            HttpRoute("GET", "/openapi.json", self.show_document),
            HttpRoute("GET", "/", self.show_page),
            HttpRoute("GET", "/docs", self.point_to_page),
        ]

    @asynccontextmanager
    async def opened(
        self, *, access_log: logging.Logger | None = None, shutdown_s: float = SHUTDOWN_S
    ) -> AsyncIterator[Callable[[], asyncio.Protocol]]:
        """Inside, what makes a protocol for each connection. Behind it all requests have ended."""
        server = web.Server(
            self._answered,
            request_factory=partial(HttpRequest, loop=asyncio.get_running_loop()),
            handler_cancellation=True,
            max_headers=MAX_HEADERS,
            read_bufsize=READ_BYTES,
            auto_decompress=False,  # aiohttp inflates a body as it arrives, before anybody has counted it
            access_log=access_log,
            access_log_class=logged(_owner_logged, self.options.trusted_proxies),
        )
        runner = web.ServerRunner(server, shutdown_timeout=shutdown_s)
        await runner.setup()
        sweepers = [asyncio.create_task(part.sweep_for_ever()) for part in (self.sessions, self.door)]
        try:
            yield protocols(server, partial(malformed, "/v1"))
        finally:
            self.door.close()
            await runner.cleanup()
            for sweeper in sweepers:
                sweeper.cancel()
            await asyncio.gather(*sweepers, return_exceptions=True)
            await self.keys.close()
            self._incoming.close()
            await self.sessions.close_all()

    def drain(self) -> None:
        """From now on nothing begins: a body that is still on its way, or is being decoded, counts as no call
        in flight, and nobody would wait for its answer."""
        self.draining = True
        self._incoming.end()

    def num_workers(self) -> int:
        """Programs at a time: of the sandbox itself where that changes, as a fabric's does."""
        capacity: int | None = getattr(self._sandbox, "capacity", None)
        return self.options.num_workers if capacity is None else capacity

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, HttpRequest)
        found = self.routes.known(request) or await self.routes.find(request)
        connection = request.protocol
        try:
            owner = self._owner_of(request, found)
            self.door.begins(connection, owner)
            request.owner = owner or ""
            request.names = found.names
            if request.headers.get("Expect") and found.place != UNKNOWN:
                self._incoming.check_head(request)
                await send_continue(request)
            response = await found.handler(request)
        except Refused as refusal:
            response = refused(request.path, refusal)
        except DoorFull as full:
            response = refused(request.path, Full(str(full)))
        except SandboxError as error:
            response = respond(failure_answer(error))
        except web.HTTPException as error:  # the router's: no such path, wrong method
            kind = "no_such_path" if error.status == 404 else "bad_request"
            response = refused(request.path, Refused(error.reason, status=error.status, kind=kind))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except asyncio.CancelledError:
            self.metrics.disconnects += 1
            raise
        except ConnectionError:
            self.metrics.disconnects += 1
            return hung_up(request)
        finally:
            self._incoming.release(request)
            self.door.ends(connection)
        self.metrics.answers[found.place, response.status] += 1
        return response

    def _owner_of(self, request: HttpRequest, found: Found) -> str | None:
        """Whose it is; None for what anybody may ask. Raises Refused."""
        if found.open:
            return None
        owner = owner_of(self._owners, request.headers)
        if owner is None:
            raise Refused(
                "give the service's token as `Authorization: Bearer TOKEN`", status=401, kind="unauthorized"
            )
        if self._open_to_all:
            refuse_web_pages(request.headers, request.host)
        if self.draining and request.method == "POST":
            raise ServiceEnds()
        return owner

    async def healthz(self, request: HttpRequest) -> web.Response:
        return web.Response(body=to_json(Healthy()), content_type=JSON)

    async def readyz(self, request: HttpRequest) -> web.Response:
        """Whether the sandbox runs a program now; why not only for who may call."""
        problem = "the service is shutting down" if self.draining else await self._readiness.problem()
        if not problem:
            return web.Response(body=to_json(Ready(ready=True)), content_type=JSON)
        return _unready(problem if self._may_call(request) else "")

    def _may_call(self, request: HttpRequest) -> bool:
        try:
            if self._open_to_all:
                refuse_web_pages(request.headers, request.host)
            return owner_of(self._owners, request.headers) is not None
        except Refused:
            return False

    async def show_metrics(self, request: HttpRequest) -> web.Response:
        return web.Response(body=self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    def _told(self) -> dict[str, float]:
        """What is known elsewhere, for the metrics."""
        return {
            "queued": max(0, self.metrics.in_flight - self.num_workers()),
            "sessions": len(self.sessions),
            "idempotency_keys": len(self.keys),
            "connections": len(self.door),
            "connections_turned_away_total": self.door.turned_away,
            "idempotent_hits_total": self.keys.hits,
            **backend_stats(self._sandbox),
        }

    async def show_document(self, request: HttpRequest) -> web.Response:
        return web.Response(body=to_json(document(self.options.rules)), content_type=JSON)

    async def show_page(self, request: HttpRequest) -> web.Response:
        options = self.options
        text = page(request.host, options.rules.flavours, needs_token=bool(options.owners))
        return web.Response(text=text, content_type="text/html", headers=HEADERS)

    async def point_to_page(self, request: HttpRequest) -> web.Response:
        return web.Response(status=302, headers={"Location": "./"})


def backend_stats(sandbox: object) -> dict[str, float]:
    """What a sandbox counts about itself: a pool its restarts and evictions, a fabric its `counters()`."""
    parts = getattr(sandbox, "parts", None)
    if callable(parts):
        return {name: value for part in parts() for name, value in backend_stats(part).items()}
    names = {"restarts": "restarts_total", "evictions": "evictions_total", "sessions": "pool_sessions"}
    found = {shown: getattr(sandbox, name, None) for name, shown in names.items()}
    counters = getattr(sandbox, "counters", None)
    if callable(counters):
        found.update((f"fabric_{name}_total", value) for name, value in counters().items())
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def refused(path: str, refusal: Refused) -> web.Response:
    """A refusal in the shape of the path's dialect."""
    headers = {"Retry-After": str(Full.retry_after_s)} if refusal.status in (429, 503) else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(refusal, SchemaError):
        body = refusal.answer
    elif path == "/v1" or path.startswith("/v1/"):
        body = to_json({"error": refusal.to_json()})
    elif isinstance(refusal, Unparsable):
        body = to_json(Refusal("There was an error parsing the body"))
    else:
        body = to_json(Refusal(str(refusal)))
    response = web.Response(body=body, status=refusal.status, headers=headers, content_type=JSON)
    if refusal.status in (408, 413, 415, 503):
        response.force_close()  # what is left of the body is not read
    return response


def malformed(path: str, status: int, why: str) -> web.Response:
    kind = "not_http" if status < 500 else "failed"
    return refused(path, Refused(why, status=status, kind=kind))


def _owner_logged(request: web.BaseRequest) -> str:
    return request.owner if isinstance(request, HttpRequest) else ""


def _unready(reason: str) -> web.Response:
    return web.Response(body=to_json(Ready(ready=False, reason=reason)), status=503, content_type=JSON)
