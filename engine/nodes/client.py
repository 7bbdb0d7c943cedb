"""Another node over HTTP. Whatever goes wrong there is a NodeError; the caller sets the deadlines."""

import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp

from rocstar.engine.inference.base import KvLoad
from rocstar.engine.nodes.node import GroupOrder, NodeError, NodeLoad
from rocstar.engine.nodes.wire import NodeWireError, decode_group, encode_order, in_thread
from rocstar.engine.types import Group
from rocstar.sandbox.http.bodies import read_at_most

MAX_ANSWER_BYTES = 1 << 30
"""A group of 64 trajectories of 128k tokens is about 140 MB."""
CONNECT_TIMEOUT_S = 10.0


class HttpNode:
    """A node's service at `url` (service.py). Implements `node.Node`."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession) -> None:
        self.name, self._url, self._session = name, url, session

    async def roll_out(self, order: GroupOrder, *, timeout_s: float) -> Group:
        try:
            body = encode_order(order, timeout_s=timeout_s)
            answer = await self._ask("POST", "/v1/groups", body)
            return await in_thread(decode_group, answer, order)
        except NodeWireError as error:
            raise NodeError(str(error)) from None

    async def load(self) -> NodeLoad:
        told = await self._ask("GET", "/v1/load", None)
        try:
            fields = json.loads(told)
            kv = KvLoad(**{name: int(fields[name]) for name in ("total", "used", "running", "waiting")})
            return NodeLoad(kv=kv, granted=frozenset(map(str, fields["granted"])))
        except (ValueError, TypeError, KeyError) as error:
            raise NodeError(f"no load: {error!r}") from None

    async def _ask(self, method: str, path: str, body: bytes | None) -> bytes:
        try:
            async with self._session.request(method, self._url + path, data=body) as response:
                answer = await read_at_most(response.content, MAX_ANSWER_BYTES)
                if response.status != 200:
                    shown = answer[:300].decode("utf-8", "replace")
                    raise NodeError(f"{path} answered {response.status}: {shown}")
                return answer
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NodeError(f"{path}: {type(error).__name__}: {error}") from None


@contextlib.asynccontextmanager
async def node_session(token: str) -> AsyncIterator[aiohttp.ClientSession]:
    """One session for all nodes of a run: no proxy, no redirect, a connection for each group in flight."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Authorization": f"Bearer {token}"},
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
        trust_env=False,
        auto_decompress=False,
    ) as session:
        yield session
