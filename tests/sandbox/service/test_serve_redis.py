"""`serve --redis` with a worker and a Redis of its own: stateless calls travel, sessions stay."""

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from ...needs import REDIS
from ...patience import PATIENCE_S

CLI = [sys.executable, "-c", "import sys; from rocstar.sandbox.cli import main; sys.exit(main())"]

pytestmark = REDIS.unless(shutil.which("redis-server") is not None)


@asynccontextmanager
async def running(command: list[str], ready: str, **environment: str) -> AsyncIterator[str]:
    """A process, once it wrote a line that matches; yields that line."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    seen = ""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not re.search(ready, line := (await process.stdout.readline()).decode()):
                assert line, seen
                seen += line
        yield line
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), PATIENCE_S)


def post(port: int, path: str, body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def read(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def get(port: int, path: str) -> Any:
    return json.loads(read(port, path))


async def test_calls_go_to_workers_and_sessions_stay() -> None:
    with tempfile.TemporaryDirectory(prefix="rocstar-") as folder:
        socket = Path(folder, "redis.sock")
        redis = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", ""]
        url = {"ROCSTAR_REDIS_URL": f"unix://{socket}"}
        serve = [*CLI, "serve", "--port", "0", "--flavours", "stdlib", "--redis"]
        async with (
            running(redis, "[Rr]eady to accept connections"),
            running([*CLI, "worker", "--name", "w1", "--max-live", "17"], "ready", **url),
            running(serve, "serving on", **url) as line,
        ):
            port = int(line.rsplit(":", 1)[1])
            requests = [
                {"code": f"import os; print({i}, os.environ.get('ROCSTAR_REDIS_URL'))"} for i in range(50)
            ]
            status, answer = await asyncio.to_thread(post, port, "/v1/batch", {"requests": requests})
            assert status == 200
            assert [result["stdout"] for result in answer["results"]] == [f"{i} None\n" for i in range(50)]
            assert (await asyncio.to_thread(get, port, "/status"))["num_workers"] == 17
            body = {"type": "python", "solution": "print(input())", "input": "9", "expected_output": "9"}
            status, answer = await asyncio.to_thread(post, port, "/judge", body)
            assert (status, answer["success"]) == (200, True)
            _, opened = await asyncio.to_thread(post, port, "/v1/sessions", {})
            path = f"/v1/sessions/{opened['id']}/run"
            await asyncio.to_thread(post, port, path, {"code": "x = 1"})
            status, answer = await asyncio.to_thread(post, port, path, {"code": "x"})
            assert (status, answer["value"]) == (200, "1")
            text = await asyncio.to_thread(read, port, "/metrics")
            assert re.search(r"\nrocstar_sandbox_fabric_calls_total 51\.0\n", text)


async def test_worker_and_service_say_when_redis_goes_and_is_back() -> None:
    with tempfile.TemporaryDirectory(prefix="rocstar-") as folder:
        socket = Path(folder, "redis.sock")
        redis = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", ""]
        url = {"ROCSTAR_REDIS_URL": f"unix://{socket}"}
        commands = {
            "worker": [*CLI, "worker", "--flavours", "stdlib"],
            "serve": [*CLI, "serve", "--port", "0", "--flavours", "stdlib", "--redis"],
        }
        async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
            first = await stack.enter_async_context(AsyncExitStack())
            await first.enter_async_context(running(redis, "[Rr]eady to accept connections"))
            processes = {
                verb: await asyncio.create_subprocess_exec(
                    *command,
                    env={**os.environ, **url},
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
                for verb, command in commands.items()
            }
            for process in processes.values():
                stack.push_async_callback(ended, process)
            for verb, ready in (("worker", "ready, "), ("serve", "programs at a time")):
                await said(processes[verb], ready)
            processes["worker"].send_signal(signal.SIGHUP)  # a closed terminal
            await first.aclose()
            for verb, process in processes.items():
                line = await said(process, "is unreachable")
                assert line.startswith(
                    f"rocstar sandbox {verb}: Redis at unix://{socket} is unreachable: "
                ), line
            await stack.enter_async_context(running(redis, "[Rr]eady to accept connections"))
            for verb, process in processes.items():
                line = await said(process, "Redis at")  # it is away once, and back once
                assert line == f"rocstar sandbox {verb}: Redis at unix://{socket} answers again\n"


async def said(process: asyncio.subprocess.Process, words: str) -> str:
    """The first line from here on that has the words."""
    assert process.stdout is not None
    seen = ""
    while words not in (line := (await process.stdout.readline()).decode()):
        assert line, seen
        seen += line
    return line


async def ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    await process.communicate()
