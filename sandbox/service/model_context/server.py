"""`rocstar sandbox mcp` as a process.

start: options -> sandbox -> tools -> sockets -> "serving on"
       options -> sandbox, without its flavours -> tools -> stdio; a call waits for its own flavour
stop:  the end of standard input; SIGTERM or Ctrl-C -> sessions closed -> sandbox closed -> exit
"""

import argparse
import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from typing import Any

import uvicorn
import uvloop
from mcp.server import MCPServer
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from rocstar.sandbox.child.import_scan import select_flavour
from rocstar.sandbox.command_line import INTERRUPTED, Starting, print_status, require_own_users
from rocstar.sandbox.loopback.apart import Apart
from rocstar.sandbox.loopback.door import Door
from rocstar.sandbox.loopback.listening import address_of, bind, listen
from rocstar.sandbox.loopback.malformed import NOT_HTTP, limit_log
from rocstar.sandbox.loopback.tokens import (
    Owners,
    read_owners,
    require_token_unless_loopback,
    reread_on_hangup,
)
from rocstar.sandbox.pool.event_loop_priority import PROGRAMS_NICE, raised_priority
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.service.auth import TOKEN_VARIABLE
from rocstar.sandbox.service.calls import Admission
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.incoming import Incoming
from rocstar.sandbox.service.metrics import Metrics
from rocstar.sandbox.service.model_context.endable import endable_stdin
from rocstar.sandbox.service.model_context.guard import (
    BODY_S,
    CONNECTION,
    MAX_HELD_BYTES,
    PATH,
    Guard,
    owner_of,
    refused,
)
from rocstar.sandbox.service.model_context.outputs import SCHEME
from rocstar.sandbox.service.model_context.tools import INSTRUCTIONS, NAME, OwnerOf, Toolbox
from rocstar.sandbox.service.readiness import Readiness
from rocstar.sandbox.service.serve import announce, chosen_flavours, raise_descriptor_limit
from rocstar.sandbox.service.sessions import SessionTable
from rocstar.sandbox.types import SessionSandbox

MAX_CALLS = 256
MAX_CONNECTIONS = 256
MAX_BODY_BYTES = 16 << 20
"""Of one request: the files of a call as base64, and room to spare."""

LEASE_S = 1800.0
HEADER_S, IDLE_S = 10, 75
"""Of a connection: without a request, and between two."""


def run(options: argparse.Namespace) -> int:
    """Serves until its input ends, or a signal. Raises ValueError, OSError or SandboxError for what keeps it
    from starting."""
    chosen_flavours(options)
    owners = read_owners(options.token_file, os.environ, TOKEN_VARIABLE)
    if options.http:
        require_token_unless_loopback(address_of(options).tcp_hosts, owners, TOKEN_VARIABLE)
        raise_descriptor_limit()
    with (
        raised_priority() if options.http else nullcontext(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_serve(options, owners))


async def _serve(options: argparse.Namespace, owners: Owners) -> int:
    flavours, own = chosen_flavours(options)
    starting = Starting("mcp", ", ".join(flavours))
    pool = SandboxPool(
        flavours,
        declared=own,
        max_sessions=options.max_sessions,
        lease_s=LEASE_S,
        weights=owners.weights(),
        nice=PROGRAMS_NICE,
        start_warm=options.http,  # of the others some give a server five seconds for its first answer
        on_warm=starting.warm,
    )
    async with pool:
        require_own_users(pool.isolation, options.allow_shared_user, "mcp")
        if options.http:
            return await serve_http(pool, options.max_sessions, owners, bind(address_of(options)))
        async with offered(pool, options.max_sessions, Owners(), lambda headers: "") as server:
            return await _until_ended(server)


@asynccontextmanager
async def offered(
    pool: SessionSandbox, max_sessions: int, owners: Owners, whose: OwnerOf
) -> AsyncIterator["MCPServer[None]"]:
    """The tools over a pool, as a server of the SDK."""
    metrics = Metrics(lambda: {})
    weights = owners.weights()
    admission = Admission(pool, metrics, max_in_flight=MAX_CALLS, weights=weights)
    offers: tuple[str, ...] = getattr(pool, "flavours", ())
    choose = partial(select_flavour, offered=offers) if offers else None
    sessions = SessionTable(
        pool, metrics, lease_s=LEASE_S, max_sessions=max_sessions, weights=weights, choose=choose
    )
    box = Toolbox(admission, sessions, whose)
    server: MCPServer[None] = MCPServer(
        NAME,
        version=version("rocstar"),
        instructions=INSTRUCTIONS,
        tools=box.tools(),
        log_level="WARNING",
        middleware=[_refusing],
    )
    server.resource(f"{SCHEME}://{{name}}", name="output", mime_type="text/plain")(box.output)
    sweeping = asyncio.create_task(sessions.sweep_for_ever())
    try:
        yield server
    finally:
        sweeping.cancel()
        await asyncio.wait((sweeping,))
        await sessions.close_all()


async def _refusing(
    ctx: ServerRequestContext[Any, Any], call_next: Callable[[Any], Awaitable[HandlerResult]]
) -> HandlerResult:
    """The SDK answers a prompt that there is not with an error of its own and a traceback in the log."""
    if ctx.method == "prompts/get":
        raise MCPError(code=INVALID_PARAMS, message="this server has no prompts")
    return await call_next(ctx)


async def _until_ended(server: "MCPServer[None]") -> int:
    """Over standard input and output, until the first ends or a signal comes. The exit status."""
    signals: list[int] = []

    def end(number: int) -> None:
        signals.append(number)
        taken.end()

    with endable_stdin() as taken:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        await server.run_stdio_async()
    return _status(signals)


def _status(signals: Sequence[int]) -> int:
    if signal.SIGINT not in signals:
        return 0
    print_status("interrupted", "mcp")
    return INTERRUPTED


async def serve_http(
    pool: SessionSandbox, max_sessions: int, owners: Owners, listening: Sequence[socket.socket]
) -> int:
    """Over HTTP on these sockets, which are closed then. The exit status."""
    incoming = Incoming(
        max_bytes=MAX_BODY_BYTES,
        max_held_bytes=MAX_HELD_BYTES,
        timeout_s=BODY_S,
        apart=Apart((), Refused),
        weights=owners.weights(),
    )
    try:
        async with offered(pool, max_sessions, owners, partial(owner_of, owners)) as server:
            # The guard has checked names of hosts and pages, those of a network address too.
            security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
            inner = server.streamable_http_app(
                max_request_body_size=MAX_BODY_BYTES,
                stateless_http=True,  # the SDK's own sessions, of which nothing is needed, are not by owner
                transport_security=security,
            )
            door = Door(
                max_guests=max(1, MAX_CONNECTIONS * 7 // 8),
                max_strangers=max(1, MAX_CONNECTIONS // 8),
                weights=owners.weights(),
                header_s=HEADER_S,
                idle_s=IDLE_S,
                clock=time.monotonic,
            )
            guard = Guard(
                inner, owners, door, Readiness(pool, "auto"), incoming, max_body_bytes=MAX_BODY_BYTES
            )
            config = uvicorn.Config(
                guard,
                ws="none",  # the guard sees requests of HTTP only
                log_level="warning",
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=1 << 16,
                lifespan="on",
            )
            limit_log("uvicorn.error")
            listener = _Listener(config, door)
            with reread_on_hangup(owners, lambda line: print_status(line, "mcp")):
                await listener.serve(sockets=list(listening))
            return _status(listener.signals)
    finally:
        incoming.close()
        for one in listening:
            one.close()


def with_errors(protocol: type[asyncio.Protocol]) -> Any:
    """uvicorn's protocol; it answers what is not HTTP in the form of the other errors."""

    def send_400_response(self: Any, _: str) -> None:
        body = bytes(refused(400, NOT_HTTP).body)
        head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    return type("Protocol", (protocol,), {"send_400_response": send_400_response})


class _Listener(uvicorn.Server):
    """Ends at a signal, and leaves it to the caller what the end of the process is. Its connections come
    through a door."""

    def __init__(self, config: uvicorn.Config, door: Door) -> None:
        super().__init__(config)
        self.servers: list[asyncio.Server] = []
        self.signals: list[int] = []
        self._door = door
        self._made: Any = None
        self._sweeper: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """In place of uvicorn's, which takes the connections itself."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise RuntimeError("the server of the Model Context Protocol did not start")
        self._made = with_errors(self.config.http_protocol_class)
        names = listen(sockets or [])
        self._door.open(sockets or [], self._new_protocol)
        self._sweeper = asyncio.create_task(self._door.sweep_for_ever())
        self.started = True
        announce(names, PATH)

    def _new_protocol(self) -> asyncio.Protocol:
        state = dict(self.lifespan.state)
        protocol: asyncio.Protocol = self._made(
            config=self.config,
            server_state=self.server_state,
            app_state=state,
            _loop=asyncio.get_running_loop(),
        )
        state[CONNECTION] = protocol
        return protocol

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._door.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await super().shutdown(sockets)

    def _end(self, number: int) -> None:
        self.signals.append(number)
        self.handle_exit(number, None)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
