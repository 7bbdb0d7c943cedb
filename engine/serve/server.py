"""A server from its socket to its drain.

sockets ──> Endpoint in a TaskGroup ──SIGTERM, SIGINT──> no new requests, active ones may finish ──> closed
                                          └─ a second signal, or the drain timeout: active ones are stopped
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from rocstar.engine.gateway.endpoint import malformed_response
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.conversation_manager import ServeOptions
from rocstar.engine.serve.conversation_store import ConversationStore
from rocstar.engine.serve.endpoint import Endpoint
from rocstar.sandbox.http.access_log import make_access_logger
from rocstar.sandbox.http.drain import StopSignals, wait_until
from rocstar.sandbox.http.listening import Address, bind, listen
from rocstar.sandbox.http.routes import open_server

ANY_PORT = Address(hosts=("127.0.0.1",), port=0)
CLOSE_S = 5.0
"""The time for connections to close after all responses."""


@contextlib.asynccontextmanager
async def open_endpoint(
    agent: Agent,
    options: ServeOptions,
    *,
    address: Address = ANY_PORT,
    access: logging.Logger | None = None,
    drain_s: float = 0.0,
    store: ConversationStore | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[Endpoint]:
    """Serve the agent while the block runs; then drain for `drain_s`. ValueError for an address in use.
    `access`: takes a line per request."""
    with contextlib.ExitStack() as stack:
        listening = bind(address)
        for one in listening:
            stack.callback(one.close)
        async with asyncio.TaskGroup() as tasks:
            endpoint = Endpoint(agent, tasks, options, store=store, note=note)
            logger = make_access_logger(lambda request: getattr(request, "owner", ""), options.trusted_proxies)
            log = {"access_log": access, "access_log_class": logger}
            try:
                async with open_server(
                    endpoint.answer, malformed_response, shutdown_s=CLOSE_S, **log
                ) as make_protocol:
                    endpoint.url = listen(listening)[0]
                    try:
                        async with endpoint.connections.opened(listening, make_protocol):
                            yield endpoint
                    finally:
                        await endpoint.drain(drain_s)
            finally:
                endpoint.close()


async def serve_until_signal(endpoint: Endpoint, drain_s: float, note: Callable[[str], None]) -> None:
    """Return after a signal, when the active conversations have ended or a second signal arrives."""
    with StopSignals().installed() as signals:
        await signals.stop.wait()
        in_flight = endpoint.conversations.in_flight
        note(f"ending: {in_flight} choices may end within {drain_s:g} s; a second signal stops them")
        await wait_until(endpoint.drain(drain_s), signals.hurry)
