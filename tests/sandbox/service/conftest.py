"""A service on a real socket of loopback, over any sandbox, and a client for it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rocstar.sandbox.service.app import Service, ServiceOptions
from rocstar.sandbox.service.decode import Rules
from rocstar.sandbox.service.imports import FlavourChoice

FLAVOURS = ("stdlib", "numeric", "verifier")


@dataclass
class Running:
    """A service that listens, and an HTTP client whose paths are relative to it."""

    service: Service
    http: aiohttp.ClientSession
    port: int

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        async with self.http.post(path, **({"json": body} if body is not None else {}), **options) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.http.get(path, **options) as answer:
            return answer.status, await answer.json()


def make_rules(**fields: Any) -> Rules:
    return Rules(choice=FlavourChoice(FLAVOURS), **fields)


@asynccontextmanager
async def serving(sandbox: Any, **options: Any) -> AsyncIterator[Running]:
    options.setdefault("rules", make_rules())
    service = Service(sandbox, ServiceOptions(**options))
    runner = web.AppRunner(service.app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            yield Running(service, http, port)
    finally:
        await runner.cleanup()


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def serve() -> Serve:
    """`async with serve(sandbox, **ServiceOptions)`."""
    return serving


@pytest.fixture
def rules() -> Rules:
    return make_rules()
