"""A server from its socket to its drain.

sockets ──> Endpoint in a TaskGroup ──SIGTERM, SIGINT──> nothing new, what goes on may end ──> closed
                                          └─ a second one, or the drain's time: what goes on is stopped
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aiohttp import web

from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.serve.endpoint import Endpoint, ServeOptions, owner_logged
from rocstar.engine.serve.kept import KeptConversations
from rocstar.engine.serve.refusals import ServeRefusal
from rocstar.sandbox.loopback.access import logged
from rocstar.sandbox.loopback.listening import Address, bind, listen
from rocstar.sandbox.loopback.malformed import protocols

ANY_PORT = Address(hosts=("127.0.0.1",), port=0)
CLOSE_S = 5.0
"""How long connections may take to close when everything has been answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A server that answers."""

    url: str
    """Its first address, up to and without /v1; unix:PATH of a server that has no other."""
    endpoint: Endpoint


@contextlib.asynccontextmanager
async def open_endpoint(
    agent: Agent,
    options: ServeOptions,
    *,
    address: Address = ANY_PORT,
    access: logging.Logger | None = None,
    drain_s: float = 0.0,
    kept: KeptConversations | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[Listening]:
    """Serve the agent while the block runs; then drain for `drain_s`. ValueError for an address in use.
    `access`: takes a line per request."""
    with contextlib.ExitStack() as stack:
        listening = bind(address)
        for one in listening:
            stack.callback(one.close)
        async with asyncio.TaskGroup() as tasks:
            endpoint = Endpoint(agent, tasks, options, kept=kept, note=note)
            runner = web.AppRunner(
                endpoint.app,
                access_log=access,
                access_log_class=logged(owner_logged, options.trusted_proxies),
                handler_cancellation=True,
                shutdown_timeout=CLOSE_S,
                auto_decompress=False,  # a body is counted as it comes
            )
            await runner.setup()
            try:
                assert runner.server is not None
                names = listen(listening)
                async with endpoint.door.opened(listening, protocols(runner.server, malformed)):
                    yield Listening(url=names[0], endpoint=endpoint)
            finally:
                await endpoint.desk.drain(drain_s)
                await runner.cleanup()
                endpoint.close()


def malformed(status: int, why: str) -> web.Response:
    refusal = ServeRefusal(why, status=status, code="not_http" if status < 500 else None)
    return web.json_response(refusal.body(), status=status)


async def until_told(endpoint: Endpoint, drain_s: float, note: Callable[[str], None]) -> None:
    """Return when a signal has come and everything that went on has ended, or a second signal has come."""
    loop, told, hurry = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (hurry if told.is_set() else told).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    try:
        await told.wait()
        note(f"ending: {endpoint.desk.in_flight} choices may end within {drain_s:g} s; once more stops them")
        drain = asyncio.ensure_future(endpoint.desk.drain(drain_s))
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait([drain, hurried], return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, hurried):
            task.cancel()
        await asyncio.gather(drain, hurried, return_exceptions=True)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
