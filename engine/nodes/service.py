"""A node's own service: it rolls out the groups that another node grants it.

    POST /v1/groups  order --> run_group(agent under the order's limits) --> 200 the whole group
    GET  /v1/load    KvLoad of the node's engine, groups in flight, those granted whole, policy version

Every request needs the run's token. A request waits for its group, at most the order's time after all its
siblings are placed. If the caller disconnects, its group is cancelled before it can be ordered again.
Errors: 401 wrong token, 400 invalid order, 408 and 413 incomplete or too large body, 409 a group that was
ordered again since, or a service that ends, 429 too many groups, 504 the order's time has passed, 500 a bug,
also printed on stderr.
"""

import asyncio
import contextlib
import dataclasses
import hmac
import json
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from rocstar.engine.nodes.node import GroupOrder, run_order
from rocstar.engine.nodes.wire import SMALL_BYTES, NodeWireError, decode_order, encode_group, in_thread
from rocstar.engine.rollout.rollout import Agent
from rocstar.engine.types import Group
from rocstar.sandbox.http.connections import ConnectionLimiter, ConnectionsExhausted
from rocstar.sandbox.http.guard import parse_bearer_token
from rocstar.sandbox.http.malformed import protocol_factory

MAX_BODY_BYTES = 16 << 20
"""The largest body of an order, which is a task."""
BODY_TIMEOUT_S = 30.0
MAX_GROUPS = 4096
MAX_CONNECTIONS = 2 * MAX_GROUPS
"""An eighth of them are for clients without a token yet, so that idle connections cannot exhaust the rest."""
OWNER = ""
"""Whoever has the run's token."""
BACKLOG = 1024
SHUTDOWN_S = 1.0
"""The time in which the last answers leave; what then still runs is cancelled."""
JSON = "application/json"
FRAMES = "application/octet-stream"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _GivenUp(Exception):
    """Another request has the group now, or the service ends."""


class NodeService:
    """Invariant: a group is rolled out at most once at a time, however often it is ordered; nothing of it
    goes on when its request has ended."""

    def __init__(self, agent: Agent, token: str, *, version: Callable[[], int] = lambda: 0) -> None:
        self._agent, self._token, self._version = agent, token, version
        self._running: dict[str, asyncio.Task[Group]] = {}
        self._granted: set[str] = set()
        """Those of which every sibling has its place: their time runs."""
        self.door = ConnectionLimiter.shared(MAX_CONNECTIONS)
        self.app = web.Application(
            middlewares=[self._guard], client_max_size=MAX_BODY_BYTES, handler_args={"handler_cancellation": True}
        )
        self.app.router.add_post("/v1/groups", self._groups)
        self.app.router.add_get("/v1/load", self._load)

    async def close(self) -> None:
        """End every group in flight."""
        for running in list(self._running.values()):
            running.cancel()
        if self._running:
            await asyncio.wait(list(self._running.values()))

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not hmac.compare_digest(parse_bearer_token(request.headers), self._token.encode()):
            return _refusal(401, "give the run's token as `Authorization: Bearer TOKEN`")
        connection = request.protocol
        try:
            self.door.begin_request(connection, OWNER)
            return await handler(request)
        except ConnectionsExhausted as full:
            return _refusal(429, str(full))
        except web.HTTPException as error:  # the router's, or the body is too large
            response = _refusal(error.status, error.reason)
            if error.status == 413:
                response.force_close()
            return response
        except Exception as error:  # our bug: report it to the caller and continue to serve
            traceback.print_exc(file=sys.stderr)
            return _refusal(500, f"{type(error).__name__}: {error}")
        finally:
            self.door.end_request(connection)

    async def _groups(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await request.read()
        except TimeoutError:
            return _refusal(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s")
        try:
            if len(body) <= SMALL_BYTES:
                order, timeout_s = decode_order(body)
            else:
                order, timeout_s = await in_thread(decode_order, body)
        except NodeWireError as error:
            return _refusal(400, str(error))
        if len(self._running) >= MAX_GROUPS:
            return _refusal(429, f"{MAX_GROUPS} groups are in flight here")
        try:
            async with asyncio.timeout(None) as limit:
                group = await self._roll_out(order, limit, timeout_s)
        except TimeoutError:
            return _refusal(504, f"{order.key} was not done within {timeout_s:g} s")
        except _GivenUp:
            return _refusal(409, f"{order.key} was ordered again, or this service ends")
        return web.Response(body=await in_thread(encode_group, group), content_type=FRAMES)

    async def _roll_out(self, order: GroupOrder, limit: asyncio.Timeout, timeout_s: float) -> Group:
        """Run one order at a time per name: an earlier one for the same group is ended first, as it has no
        reader. `limit` passes `timeout_s` after every sibling is placed.
        """
        while (earlier := self._running.get(order.key)) is not None:
            earlier.cancel()
            await asyncio.wait([earlier])

        def placed() -> None:
            self._granted.add(order.key)
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time() + timeout_s)

        work = run_order(self._agent, order, placed=placed)
        running = self._running[order.key] = asyncio.create_task(work, name=f"group {order.key}")
        running.add_done_callback(lambda _: self._forget(order.key))  # before those who wait for it go on
        try:
            await asyncio.wait([running])
        finally:
            running.cancel()
            await asyncio.wait([running])
        if running.cancelled():
            raise _GivenUp
        return running.result()

    def _forget(self, key: str) -> None:
        del self._running[key]
        self._granted.discard(key)

    async def _load(self, request: web.Request) -> web.Response:
        load = dataclasses.asdict(self._agent.inference.load())
        told = {**load, "groups": len(self._running), "version": self._version()}
        told["granted"] = sorted(self._granted)
        return web.Response(body=json.dumps(told).encode(), content_type=JSON)


def _refusal(status: int, reason: str) -> web.Response:
    return web.Response(body=json.dumps({"error": reason}).encode(), status=status, content_type=JSON)


@contextlib.asynccontextmanager
async def serving(service: NodeService, host: str, port: int = 0) -> AsyncIterator[int]:
    """Listen at one address; yields the port. On exit, requests in flight are ended."""
    runner = web.AppRunner(service.app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        assert runner.server is not None
        async with service.door.opened([listening], protocol_factory(runner.server, _refusal)):
            yield int(listening.getsockname()[1])
    finally:
        await service.close()
        await runner.cleanup()
