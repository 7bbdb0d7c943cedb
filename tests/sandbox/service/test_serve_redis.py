"""`serve --redis` with a worker and a Redis of its own: stateless calls travel, sessions stay."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ...needs import REDIS
from ...patience import PATIENCE_S

CLI = [sys.executable, "-c", "import sys; from rocstar.sandbox.cli import main; sys.exit(main())"]

pytestmark = REDIS.unless(shutil.which("redis-server") is not None)


@asynccontextmanager
async def running(command: list[str], ready: str, **environment: str) -> AsyncIterator[tuple[Process, str]]:
    """Start a process. Yields it and its first line with `ready`."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **environment}, stdout=PIPE, stderr=STDOUT
    )
    try:
        yield process, await line_with(process, ready)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), PATIENCE_S)


async def line_with(process: Process, words: str) -> str:
    """Return the next line that has the words."""
    assert process.stdout is not None
    seen = ""
    async with asyncio.timeout(PATIENCE_S):
        while words not in (line := (await process.stdout.readline()).decode()):
            assert line, seen
            seen += line
    return line


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rocstar-") as folder:
        yield Path(folder, "redis.sock")


def redis_at(socket: Path) -> AbstractAsyncContextManager[tuple[Process, str]]:
    place = ["--port", "0", "--unixsocket", str(socket), "--dir", str(socket.parent), "--save", ""]
    return running(["redis-server", *place], "eady to accept connections")


SERVE = [*CLI, "serve", "--port", "0", "--flavours", "stdlib", "--redis"]


async def test_calls_go_to_workers_and_sessions_stay(socket: Path) -> None:
    url = {"ROCSTAR_REDIS_URL": f"unix://{socket}"}
    async with (
        redis_at(socket),
        running([*CLI, "worker", "--name", "w1", "--max-live", "17", "--flavours", "stdlib"], "ready", **url),
        running(SERVE, "serving on", **url) as (_, line),
        aiohttp.ClientSession("http://127.0.0.1:" + line.strip().rsplit(":", 1)[1]) as http,
        asyncio.timeout(PATIENCE_S),
    ):

        async def post(path: str, body: Any) -> Any:
            async with http.post(path, json=body, raise_for_status=True) as answer:
                return await answer.json()

        requests = [{"code": f"import os; print({i}, os.environ.get('ROCSTAR_REDIS_URL'))"} for i in range(50)]
        answer = await post("/v1/batch", {"requests": requests})
        assert [result["stdout"] for result in answer["results"]] == [f"{i} None\n" for i in range(50)]
        async with http.get("/status") as status:
            assert (await status.json())["num_workers"] == 17
        body = {"type": "python", "solution": "print(input())", "input": "9", "expected_output": "9"}
        assert (await post("/judge", body))["success"]
        path = f"/v1/sessions/{(await post('/v1/sessions', {}))['id']}/run"
        await post(path, {"code": "x = 1"})
        assert (await post(path, {"code": "x"}))["value"] == "1"
        async with http.get("/metrics") as metrics:
            assert "\nrocstar_sandbox_fabric_calls_total 51.0\n" in await metrics.text()


async def test_worker_and_service_say_when_redis_goes_and_is_back(socket: Path) -> None:
    url = {"ROCSTAR_REDIS_URL": f"unix://{socket}"}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(redis_at(socket))
        processes = {}
        for verb, command, ready in (
            ("worker", [*CLI, "worker", "--flavours", "stdlib"], "ready, "),
            ("serve", SERVE, "programs at a time"),
        ):
            processes[verb], _ = await stack.enter_async_context(running(command, ready, **url))
        processes["worker"].send_signal(signal.SIGHUP)  # a closed terminal
        await first.aclose()
        for verb, process in processes.items():
            line = await line_with(process, "is unreachable")
            assert line.startswith(f"rocstar sandbox {verb}: Redis at unix://{socket} is unreachable: "), line
        await stack.enter_async_context(redis_at(socket))
        for verb, process in processes.items():
            line = await line_with(process, "Redis at")  # one line for the loss, one for the return
            assert line == f"rocstar sandbox {verb}: Redis at unix://{socket} answers again\n"
