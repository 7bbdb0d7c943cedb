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
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
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
from rocstar.sandbox.http.bodies import BodyReader
from rocstar.sandbox.http.connections import ConnectionLimiter
from rocstar.sandbox.http.decode_process import DecodePool
from rocstar.sandbox.http.guard import (
    TOKEN_VARIABLE,
    Owners,
    load_owners,
    reload_on_sighup,
    require_token_unless_loopback,
)
from rocstar.sandbox.http.listening import bind, listen, parse_address
from rocstar.sandbox.http.malformed import NOT_HTTP, limit_log
from rocstar.sandbox.pool.event_loop_priority import PROGRAMS_NICE, raised_priority
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.service.admission import Admission, ReadinessProbe
from rocstar.sandbox.service.metrics import ServiceMetrics
from rocstar.sandbox.service.model_context.guard import (
    BODY_S,
    CONNECTION,
    MAX_HELD_BYTES,
    PATH,
    McpGuard,
    authenticated_owner,
    error_response,
)
from rocstar.sandbox.service.model_context.tools import INSTRUCTIONS, NAME, SCHEME, McpTools, OwnerOf
from rocstar.sandbox.service.serve import announce, chosen_flavours, raise_descriptor_limit
from rocstar.sandbox.service.sessions import SessionTable
from rocstar.sandbox.types import SessionSandbox

READ_BYTES = 1 << 16


@contextmanager
def interruptible_stdin() -> Iterator[Callable[[], None]]:
    """Replace `sys.stdin`, which the SDK reads, in the block. Yields a function that ends the input."""
    ours, theirs = socket.socketpair()

    def end() -> None:
        with suppress(OSError):  # it has ended
            ours.shutdown(socket.SHUT_WR)

    def forward() -> None:
        with suppress(OSError):  # it was ended, or standard input cannot be read
            while read := os.read(0, READ_BYTES):
                ours.sendall(read)
        end()

    own = sys.stdin
    with theirs:
        sys.stdin = theirs.makefile("r", encoding="utf-8", errors="replace")
    threading.Thread(target=forward, name="rocstar-input", daemon=True).start()
    try:
        yield end
    finally:
        sys.stdin = own


MAX_CALLS = 256
MAX_HELD_CHARS = 1 << 30
MAX_CONNECTIONS = 256
MAX_BODY_BYTES = 16 << 20
"""The maximum size of a request: the files of a call as base64, with some margin."""

LEASE_S = 1800.0
HEADER_S, IDLE_S = 10, 75
"""The timeouts of a connection: without a request, and between two."""


def run(options: argparse.Namespace) -> int:
    """Serves until its input ends, or a signal. Raises ValueError, OSError or SandboxError for what keeps it
    from starting."""
    chosen_flavours(options)
    owners = load_owners(options.token_file, os.environ, TOKEN_VARIABLE)
    if options.http:
        require_token_unless_loopback(parse_address(options).tcp_hosts, owners, TOKEN_VARIABLE)
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
            return await serve_http(pool, options.max_sessions, owners, bind(parse_address(options)))
        async with open_mcp_server(pool, options.max_sessions, Owners(), lambda headers: "") as server:
            return await _serve_stdio(server)


@asynccontextmanager
async def open_mcp_server(
    pool: SessionSandbox, max_sessions: int, owners: Owners, whose: OwnerOf
) -> AsyncIterator["MCPServer[None]"]:
    """The tools over a pool, as a server of the SDK."""
    metrics = ServiceMetrics()
    admission = Admission(pool, metrics, owners.budget(MAX_CALLS), owners.budget(MAX_HELD_CHARS))
    offers: tuple[str, ...] = getattr(pool, "flavours", ())
    choose = partial(select_flavour, offered=offers) if offers else None
    shares = owners.budget(max_sessions)
    sessions = SessionTable(pool, metrics, shares, lease_s=LEASE_S, select_flavour=choose)
    box = McpTools(admission, sessions, whose)
    server: MCPServer[None] = MCPServer(
        NAME,
        version=version("rocstar"),
        instructions=INSTRUCTIONS,
        tools=box.tools(),
        log_level="WARNING",
        middleware=[_reject_prompts],
    )
    server.resource(f"{SCHEME}://{{name}}", name="output", mime_type="text/plain")(box.output)
    sweeping = asyncio.create_task(sessions.run_sweeper())
    try:
        yield server
    finally:
        sweeping.cancel()
        await asyncio.wait((sweeping,))
        await sessions.close_all()


async def _reject_prompts(
    ctx: ServerRequestContext[Any, Any], call_next: Callable[[Any], Awaitable[HandlerResult]]
) -> HandlerResult:
    """The SDK answers a prompt that there is not with an error of its own and a traceback in the log."""
    if ctx.method == "prompts/get":
        raise MCPError(code=INVALID_PARAMS, message="this server has no prompts")
    return await call_next(ctx)


async def _serve_stdio(server: "MCPServer[None]") -> int:
    """Serve over standard input and output until the input ends or a signal comes. Return the exit status."""
    signals: list[int] = []

    def end(number: int) -> None:
        signals.append(number)
        end_input()

    with interruptible_stdin() as end_input:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        await server.run_stdio_async()
    return _exit_status(signals)


def _exit_status(signals: Sequence[int]) -> int:
    if signal.SIGINT not in signals:
        return 0
    print_status("interrupted", "mcp")
    return INTERRUPTED


async def serve_http(
    pool: SessionSandbox, max_sessions: int, owners: Owners, listening: Sequence[socket.socket]
) -> int:
    """Over HTTP on these sockets, which are closed then. The exit status."""
    body_reader = BodyReader(
        max_bytes=MAX_BODY_BYTES, held=owners.budget(MAX_HELD_BYTES), timeout_s=BODY_S, decode_pool=DecodePool(())
    )
    try:
        async with open_mcp_server(pool, max_sessions, owners, partial(authenticated_owner, owners)) as server:
            # The guard has checked names of hosts and pages, those of a network address too.
            security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
            inner = server.streamable_http_app(
                max_request_body_size=MAX_BODY_BYTES,
                stateless_http=True,  # the SDK's own sessions, of which nothing is needed, are not by owner
                transport_security=security,
            )
            connections = ConnectionLimiter.shared(MAX_CONNECTIONS, owners, header_s=HEADER_S, idle_s=IDLE_S)
            guard = McpGuard(inner, owners, connections, ReadinessProbe(pool, "auto"), body_reader)
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
            listener = _Listener(config, connections)
            with reload_on_sighup(owners, lambda line: print_status(line, "mcp")):
                await listener.serve(sockets=list(listening))
            return _exit_status(listener.signals)
    finally:
        body_reader.close()
        for one in listening:
            one.close()


def with_json_errors(protocol: type[asyncio.Protocol]) -> Any:
    """Return uvicorn's protocol, with JSON errors for requests that are not HTTP."""

    def send_400_response(self: Any, _: str) -> None:
        body = bytes(error_response(400, NOT_HTTP).body)
        head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    return type("Protocol", (protocol,), {"send_400_response": send_400_response})


class _Listener(uvicorn.Server):
    """A server that stops at a signal and leaves the exit status to the caller. Its connections pass a
    `ConnectionLimiter`."""

    def __init__(self, config: uvicorn.Config, connections: ConnectionLimiter) -> None:
        super().__init__(config)
        self.servers: list[asyncio.Server] = []
        self.signals: list[int] = []
        self._connections = connections
        self._made: Any = None
        self._sweeper: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start without uvicorn's own accepting of connections."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise RuntimeError("the server of the Model Context Protocol did not start")
        self._made = with_json_errors(self.config.http_protocol_class)
        names = listen(sockets or [])
        self._connections.open(sockets or [], self._new_protocol)
        self._sweeper = asyncio.create_task(self._connections.run_sweeper())
        self.started = True
        announce(names, PATH)

    def _new_protocol(self) -> asyncio.Protocol:
        state = dict(self.lifespan.state)
        protocol: asyncio.Protocol = self._made(
            config=self.config, server_state=self.server_state, app_state=state, _loop=asyncio.get_running_loop()
        )
        state[CONNECTION] = protocol
        return protocol

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._connections.close()
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
