"""A service on a real socket of loopback, over any sandbox, and a client for it."""

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rocstar.sandbox.http.guard import Owner, Owners
from rocstar.sandbox.service.app import Service, ServiceOptions
from rocstar.sandbox.service.validation import ServiceLimits
from rocstar.sandbox.types import ExecRequest, ExecResult
from tests.fakes.sandbox import FakeSandbox, ok

from ...patience import PATIENCE_S

FLAVOURS = ("stdlib", "numeric", "verifier", "cpp")


@dataclass
class Running:
    """A service that listens, and an HTTP client whose paths are relative to it."""

    service: Service
    http: aiohttp.ClientSession
    port: int

    async def send(self, sent: bytes, limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection and write to it. `limit`: of the client's buffer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        writer.write(sent)
        return reader, writer

    async def post(
        self, path: str, body: Any = None, *, data: bytes | None = None, headers: Any = ()
    ) -> tuple[int, Any]:
        if data is None:
            data = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **dict(headers)}
        async with self.http.post(path, data=io.BytesIO(data), headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.http.get(path, **options) as answer:
            return answer.status, await answer.json()

    async def metric(self, name: str, **labels: str) -> float | None:
        """A sample of /metrics, None when it is not there."""
        async with self.http.get("/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
        wanted = f"rocstar_sandbox_{name}"
        samples = [sample for family in families for sample in family.samples]
        return next((s.value for s in samples if (s.name, s.labels) == (wanted, labels)), None)


def request_bytes(path: str, body: Any = None, *lines: str, method: str = "POST") -> bytes:
    """Return a request with a JSON body, or with none."""
    sent = b"" if body is None else json.dumps(body).encode()
    length = () if body is None else (f"Content-Length: {len(sent)}",)
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *length, *lines, "", "")).encode() + sent


@dataclass(eq=False)
class HeldSandbox(FakeSandbox):
    """Programs wait for `gate`. running: the number that wait; most: its maximum; killed: cancelled ones."""

    script: Any = field(default_factory=dict)
    otherwise: Any = field(default_factory=lambda: ok("1\n"))
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    most: int = 0
    killed: int = 0

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        await self._wait(1)
        return await super().run(request, deadline=deadline)

    async def run_batch(self, requests: Any, *, deadline: float | None = None) -> Any:
        await self._wait(len(requests))
        async for outcome in super().run_batch(requests, deadline=deadline):
            yield outcome

    async def _wait(self, number: int) -> None:
        self.running += number
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.killed += number
            raise
        finally:
            self.running -= number

    async def until_running(self, number: int) -> None:
        await until(lambda: self.running == number)


@asynccontextmanager
async def serving(sandbox: Any, **options: Any) -> AsyncIterator[Running]:
    options.setdefault("service_limits", ServiceLimits(flavours=FLAVOURS))
    if token := options.pop("token", None):
        options["owners"] = Owners((Owner(name="", token=token),))
    service = Service(sandbox, ServiceOptions(**options))
    async with service.opened(shutdown_s=1.0) as server:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        service.connections.open([listening], server)
        limit = aiohttp.ClientTimeout(total=PATIENCE_S)  # a test fails rather than hangs
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=limit) as http:
            yield Running(service, http, port)


async def until(condition: Callable[[], object]) -> None:
    """Run other tasks until the condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0)


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def serve() -> Serve:
    """`async with serve(sandbox, **ServiceOptions)`."""
    return serving


@pytest.fixture(scope="module")
def serve_module() -> Serve:
    """As `serve`, for a module's fixtures."""
    return serving


@pytest.fixture(name="until")
def until_fixture() -> Callable[[Callable[[], object]], Awaitable[None]]:
    return until
