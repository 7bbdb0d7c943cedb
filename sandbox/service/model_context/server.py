"""`rocstar sandbox mcp` as a process.

start: options -> sandbox -> tools -> sockets -> "serving on"
       options -> sandbox, without its flavours -> tools -> stdio; a call waits for its own flavour
stop:  the end of standard input; SIGTERM or Ctrl-C -> sessions closed -> sandbox closed -> exit
"""

import argparse
import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

import uvloop
from mcp.server import MCPServer
from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from starlette.datastructures import Headers

from rocstar.sandbox.child.import_scan import select_flavour
from rocstar.sandbox.command_line import Starting, print_status, require_own_users
from rocstar.sandbox.http.bodies import BodyReader
from rocstar.sandbox.http.connections import ConnectionLimiter
from rocstar.sandbox.http.decode_process import DecodePool
from rocstar.sandbox.http.drain import StopSignals
from rocstar.sandbox.http.guard import (
    TOKEN_VARIABLE,
    Owners,
    load_owners,
    reload_on_sighup,
    require_token_unless_loopback,
)
from rocstar.sandbox.http.listening import bind, listen, parse_address
from rocstar.sandbox.http.routes import open_server
from rocstar.sandbox.pool.event_loop_priority import PROGRAMS_NICE, raised_priority
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.service.admission import Admission, ReadinessProbe
from rocstar.sandbox.service.metrics import ServiceMetrics
from rocstar.sandbox.service.model_context.guard import BODY_S, MAX_HELD_BYTES, PATH, McpGuard, error_response
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

SHUTDOWN_S = 5.0
"""The time for active requests at the shutdown."""


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
            with StopSignals().installed() as signals, interruptible_stdin() as end_input:
                stopping = asyncio.create_task(signals.stop.wait())
                stopping.add_done_callback(lambda _: end_input())
                await server.run_stdio_async()
                stopping.cancel()
            return _exit_status(signals)


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


def _exit_status(signals: StopSignals) -> int:
    if signals.status:
        print_status("interrupted", "mcp")
    return signals.status


async def serve_http(
    pool: SessionSandbox, max_sessions: int, owners: Owners, listening: Sequence[socket.socket]
) -> int:
    """Over HTTP on these sockets, which are closed then. The exit status."""
    body_reader = BodyReader(
        max_bytes=MAX_BODY_BYTES, held=owners.budget(MAX_HELD_BYTES), timeout_s=BODY_S, decode_pool=DecodePool(())
    )
    connections = ConnectionLimiter.shared(MAX_CONNECTIONS, owners, header_s=HEADER_S, idle_s=IDLE_S)
    try:
        async with open_mcp_server(
            pool, max_sessions, owners, lambda headers: owners.find_owner(Headers(dict(headers or {}))) or ""
        ) as server:
            server.streamable_http_app(
                max_request_body_size=MAX_BODY_BYTES,
                stateless_http=True,  # the SDK's own sessions, of which nothing is needed, are not by owner
                # The guard has checked names of hosts and pages, those of a network address too.
                transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            )
            manager = server.session_manager
            guard = McpGuard(manager.handle_request, owners, connections, ReadinessProbe(pool, "auto"), body_reader)
            with (
                StopSignals().installed() as signals,
                reload_on_sighup(owners, lambda line: print_status(line, "mcp")),
            ):
                async with open_server(guard, error_response, shutdown_s=SHUTDOWN_S) as make_protocol:
                    names = listen(listening)
                    async with manager.run(), connections.opened(listening, make_protocol):
                        announce(names, PATH)
                        await signals.stop.wait()
            return _exit_status(signals)
    finally:
        body_reader.close()
        for one in listening:
            one.close()
