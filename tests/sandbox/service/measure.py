"""CPU of the service alone, per call: its sandbox answers at once. The figures of docs/reference/service.md.

python tests/sandbox/service/measure.py
"""

import asyncio
import http.client
import json
import multiprocessing
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import uvloop

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.service.app import Service, ServiceOptions
from rocstar.sandbox.service.service_limits import ServiceLimits
from rocstar.sandbox.testing import FakeSandbox, ok
from rocstar.sandbox.types import ExecRequest, ExecResult

PORT = 8191
BATCH = 64
REQUESTS = 6_400
"""Of each route: the clock of /metrics goes in steps of 10 ms."""

RESULT = ok("12345\n")
CODE = "x = 12345 # {}\n" + "y = x + 1\n" * 4 + "print(x)\n"
ROUTES: list[tuple[str, int, Callable[[list[str]], Any]]] = [
    ("/v1/batch", BATCH, lambda codes: {"requests": [{"code": code} for code in codes]}),
    (
        "/run/long-batch",
        BATCH,
        lambda codes: {
            "submissions": [{"type": "python", "solution": code, "input": None} for code in codes]
        },
    ),
    ("/v1/run", 1, lambda codes: {"code": codes[0]}),
]


class Immediate(FakeSandbox):
    """Answers every call with the same result, without a turn of the loop."""

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        return RESULT

    async def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, Any]]:
        for index in range(len(requests)):
            yield index, RESULT


async def serve() -> None:
    service = Service(Immediate({}), ServiceOptions(service_limits=ServiceLimits(flavours=tuple(FLAVOURS))))
    async with service.opened() as server:
        service.connections.open([socket.create_server(("127.0.0.1", PORT))], server)
        await asyncio.Event().wait()


def connect() -> http.client.HTTPConnection:
    for _ in range(100):
        connection = http.client.HTTPConnection("127.0.0.1", PORT)
        try:
            connection.connect()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return connection
    raise SystemExit("the service did not start")


def cpu_s(connection: http.client.HTTPConnection) -> float:
    connection.request("GET", "/metrics")
    found = re.search(r"\nprocess_cpu_seconds_total ([\d.]+)", connection.getresponse().read().decode())
    assert found
    return float(found[1])


def main() -> None:
    process = multiprocessing.get_context("spawn").Process(target=run_server, daemon=True)
    process.start()
    connection = connect()
    for path, size, body in ROUTES:
        bodies = [
            json.dumps(body([CODE.format(i * size + j) for j in range(size)])).encode()
            for i in range(REQUESTS)
        ]
        start_s = 0.0
        for number, data in enumerate(bodies):
            if number == 40:
                start_s = cpu_s(connection)
            connection.request("POST", path, data)
            assert connection.getresponse().read()
        used_s = cpu_s(connection) - start_s
        print(
            f"{path:16} batches of {size:2}: {used_s / (len(bodies) - 40) / size * 1e6:6.1f} us CPU per call"
        )
    process.terminate()


def run_server() -> None:
    uvloop.run(serve())


if __name__ == "__main__":
    main()
