"""An aiohttp handler that takes a body and answers with the bytes of a cell's answer: what HTTP itself costs.

python -m sandbox_bench.bare_http PORT
"""

from __future__ import annotations

import asyncio
import gc
import sys

import uvloop
from aiohttp import web

from rocstar.sandbox.service.http import to_json
from rocstar.sandbox.types import ExecResult, Status

PATH = "/v1/sessions/{id}/run"


def answer() -> bytes:
    result = ExecResult(
        status=Status.OK,
        exit_code=0,
        signal=None,
        stdout="1000000\n",
        stderr="",
        stdout_truncated=False,
        stderr_truncated=False,
        value=None,
        wall_s=0.000123,
        cpu_s=0.000123,
        peak_memory_bytes=1 << 20,
        isolation="landlock+namespaces+network+rlimits+seccomp+uid",
        tier="A",
    )
    return to_json(result)


async def serve(port: int) -> None:
    body = answer()

    async def handler(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post(PATH, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    gc.freeze()  # as the service does
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
