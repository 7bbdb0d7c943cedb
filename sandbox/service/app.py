"""The HTTP service: authentication, limits and errors of all routes.

    request --> route --> guard (drain, token, origin) --> handler --> response
                            |  RequestError -> the dialect's own 4xx
                            |  cancelled -> client gone, its programs are killed

`Service` is the only handler of aiohttp's low-level server, which parses the requests. An application of
aiohttp would resolve the route of each request again. serve.py starts and stops the process.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from rocstar.sandbox.http import responses
from rocstar.sandbox.http.access_log import Network, make_access_logger
from rocstar.sandbox.http.bodies import BodyReader
from rocstar.sandbox.http.connections import ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.decode_process import DecodePool
from rocstar.sandbox.http.errors import InvalidJson, RequestError, SchemaError, shutting_down
from rocstar.sandbox.http.guard import Owners, authenticate, run_name
from rocstar.sandbox.http.metrics import CONTENT_TYPE
from rocstar.sandbox.http.routes import UNKNOWN_ROUTE, HttpRequest, HttpRoute, RouteMatch, Routes, open_server
from rocstar.sandbox.service import openapi
from rocstar.sandbox.service.admission import Admission, ReadinessProbe
from rocstar.sandbox.service.dialects.code_judge import CodeJudge, JudgeOptions
from rocstar.sandbox.service.dialects.native import Native
from rocstar.sandbox.service.dialects.sandbox_fusion import SandboxFusion
from rocstar.sandbox.service.idempotency import IdempotencyStore
from rocstar.sandbox.service.metrics import ServiceMetrics
from rocstar.sandbox.service.results import failure_response
from rocstar.sandbox.service.sessions import SessionTable
from rocstar.sandbox.service.validation import ServiceLimits
from rocstar.sandbox.types import SandboxError, SessionSandbox

MAX_STORED_BYTES = 256 << 20
"""The maximum size of all stored responses of idempotency keys."""

SHUTDOWN_S = 60.0
"""The time for active requests at the shutdown, aiohttp's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The settings of a service.

    Args:
        max_calls: calls in flight; beyond them the status is 429.
        max_body_bytes: the maximum size of a body.
        max_held_bytes: the maximum size of all bodies of active requests, and of all buffered outputs.
        body_timeout_s: the time for a body to arrive.
        max_connections: connections of clients; seven eighths are for authenticated clients.
        header_timeout_s: the time for a new connection to send a request.
        idle_timeout_s: the time that a connection may be idle, and that a client may not read a response.
        owners: the owners of tokens; without any, requests on loopback need no token.
        trusted_proxies: peers whose X-Forwarded-For the access log uses.
        num_workers: programs at a time, for /status, if the sandbox does not report its `capacity`.
    """

    service_limits: ServiceLimits
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
    """The service over one sandbox. `opened` yields the factory of the connections' protocols; after `drain`
    new calls are rejected."""

    def __init__(self, sandbox: SessionSandbox, options: ServiceOptions) -> None:
        self.options = options
        self.metrics = ServiceMetrics(self._service_gauges)
        self.draining = False
        self._sandbox = sandbox
        self._owners = options.owners
        self._open_to_all = not options.owners
        budget = options.owners.budget
        self._body_reader = BodyReader(
            max_bytes=options.max_body_bytes,
            held=budget(options.max_held_bytes),
            timeout_s=options.body_timeout_s,
            decode_pool=DecodePool(options.service_limits),
        )
        self.connections = ConnectionLimiter.shared(
            options.max_connections, options.owners, header_s=options.header_timeout_s, idle_s=options.idle_timeout_s
        )
        self.admission = Admission(
            sandbox, self.metrics, calls=budget(options.max_calls), held=budget(options.max_held_bytes)
        )
        self.sessions = SessionTable(
            sandbox,
            self.metrics,
            budget(options.max_sessions),
            lease_s=options.session_lease_s,
            select_flavour=options.service_limits.select_flavour,
        )
        self.keys = IdempotencyStore(
            budget(MAX_STORED_BYTES),
            ttl_s=options.idempotency_ttl_s,
            grace_s=options.idempotency_grace_s,
            max_keys=options.max_idempotency_keys,
        )
        self._readiness = ReadinessProbe(sandbox, options.service_limits.select_flavour(""))
        self.routes = Routes(self._routes())

    def _routes(self) -> list[HttpRoute]:
        options, service_limits = self.options, self.options.service_limits
        admission, bodies, write_s = self.admission, self._body_reader, options.idle_timeout_s
        native = Native(admission, self.sessions, self.keys, service_limits, bodies, write_s)
        judge = CodeJudge(admission, service_limits, options.judge, bodies, self.num_workers)
        fusion = SandboxFusion(admission, self._sandbox, service_limits, bodies)
        return [
            *(*native.routes(), *judge.routes(), *fusion.routes()),
            HttpRoute("GET", "/ping", self.ping),
            HttpRoute("GET", "/v1/ping", self.ping),
            HttpRoute("GET", "/healthz", self.healthz),
            HttpRoute("GET", "/readyz", self.readyz),
            HttpRoute("GET", "/metrics", self.show_metrics),
            HttpRoute("GET", "/openapi.json", self.show_document),
        ]

    @asynccontextmanager
    async def opened(
        self, *, access_log: logging.Logger | None = None, shutdown_s: float = SHUTDOWN_S
    ) -> AsyncIterator[Callable[[], asyncio.Protocol]]:
        """Yield the factory of the connections' protocols. When the block exits, all requests have ended."""
        logger = make_access_logger(lambda request: getattr(request, "owner", ""), self.options.trusted_proxies)
        sweepers = [asyncio.create_task(part.run_sweeper()) for part in (self.sessions, self.connections)]
        try:
            async with open_server(
                self._answered,
                partial(malformed_response, "/v1"),
                shutdown_s=shutdown_s,
                access_log=access_log,
                access_log_class=logger,
            ) as make_protocol:
                with closing(self.connections):
                    yield make_protocol
        finally:
            for sweeper in sweepers:
                sweeper.cancel()
            await asyncio.gather(*sweepers, return_exceptions=True)
            await self.keys.close()
            self._body_reader.close()
            await self.sessions.close_all()

    def drain(self) -> None:
        """Reject new calls. A body that is arriving or being decoded counts as no call in flight, so the
        shutdown would not wait for it."""
        self.draining = True
        self._body_reader.end()

    def num_workers(self) -> int:
        """Programs at a time: of the sandbox itself where that changes, as a fabric's does."""
        capacity: int | None = getattr(self._sandbox, "capacity", None)
        return self.options.num_workers if capacity is None else capacity

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, HttpRequest)
        found = await self.routes.find(request)
        connection = request.protocol
        try:
            owner = self._owner_of(request, found)
            self.connections.begin_request(connection, owner)
            request.owner = owner or ""
            request.names = found.names
            if request.headers.get("Expect") and found.place != UNKNOWN_ROUTE:
                self._body_reader.check_head(request)
                await responses.send_continue(request)
            response = await found.handler(request)
        except RequestError as error:
            response = error_response(request.path, error)
        except ConnectionsExhausted as full:
            response = error_response(request.path, RequestError(str(full), kind="full"))
        except SandboxError as error:
            response = responses.to_response(failure_response(error))
        except web.HTTPException as error:  # the router's errors: unknown path, wrong method
            kind = "no_such_path" if error.status == 404 else "bad_request"
            response = error_response(request.path, RequestError(error.reason, status=error.status, kind=kind))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except asyncio.CancelledError:
            self.metrics.disconnects += 1
            raise
        except ConnectionError:
            self.metrics.disconnects += 1
            return responses.client_gone_response(request)
        finally:
            self._body_reader.release(request)
            self.connections.end_request(connection)
        self.metrics.answers[found.place, response.status] += 1
        return response

    def _owner_of(self, request: HttpRequest, found: RouteMatch) -> str | None:
        """Return the owner, or None for an open path. Raises RequestError."""
        if found.open:
            return None
        name = run_name(request.headers) if self._open_to_all else ""
        owner = authenticate(self._owners, request.headers, request.host) or name
        if self.draining and request.method == "POST":
            raise shutting_down()
        return owner

    async def ping(self, request: HttpRequest) -> web.Response:
        return responses.json_response("pong")

    async def healthz(self, request: HttpRequest) -> web.Response:
        return responses.json_response(openapi.HealthBody())

    async def readyz(self, request: HttpRequest) -> web.Response:
        """Probe the sandbox; the reason of a failure is only for authenticated clients."""
        problem = "the service is shutting down" if self.draining else await self._readiness.problem()
        if not problem:
            return responses.json_response(openapi.ReadyBody(ready=True))
        try:
            authenticate(self._owners, request.headers, request.host)
            run_name(request.headers if self._open_to_all else {})
        except RequestError:
            problem = ""
        return responses.json_response(openapi.ReadyBody(ready=False, reason=problem), status=503)

    async def show_metrics(self, request: HttpRequest) -> web.Response:
        return web.Response(body=self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    def _service_gauges(self) -> dict[str, float]:
        """Return the metrics that other objects count."""
        return {
            "queued": max(0, self.metrics.in_flight - self.num_workers()),
            "sessions": len(self.sessions),
            "idempotency_keys": len(self.keys),
            "connections": len(self.connections),
            "connections_turned_away_total": self.connections.turned_away,
            "idempotent_hits_total": self.keys.hits,
            **backend_stats(self._sandbox),
        }

    async def show_document(self, request: HttpRequest) -> web.Response:
        return responses.json_response(openapi.build_document(self.options.service_limits))


def backend_stats(sandbox: object) -> dict[str, float]:
    """Return the counts of a sandbox: restarts and evictions of a pool, the `counters()` of a fabric."""
    if parts := getattr(sandbox, "parts", ()):
        return {name: value for part in parts for name, value in backend_stats(part).items()}
    names = {"restarts": "restarts_total", "evictions": "evictions_total", "sessions": "pool_sessions"}
    found = {shown: getattr(sandbox, name, None) for name, shown in names.items()}
    counters = getattr(sandbox, "counters", None)
    if callable(counters):
        found.update((f"fabric_{name}_total", value) for name, value in counters().items())
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def error_response(path: str, error: RequestError) -> web.Response:
    """Render an error in the format of the path's dialect."""
    if isinstance(error, SchemaError):
        body = error.answer
    elif path == "/v1" or path.startswith("/v1/"):
        body = responses.to_json({"error": error.to_json()})
    elif isinstance(error, InvalidJson):
        body = responses.to_json(openapi.ServiceErrorBody("There was an error parsing the body"))
    else:
        body = responses.to_json(openapi.ServiceErrorBody(str(error)))
    response = web.Response(body=body, status=error.status, headers=error.headers(), content_type=responses.JSON)
    if error.status in (408, 413, 415, 503):
        response.force_close()  # the rest of the body is not read
    return response


def malformed_response(path: str, status: int, why: str) -> web.Response:
    kind = "not_http" if status < 500 else "failed"
    return error_response(path, RequestError(why, status=status, kind=kind))
