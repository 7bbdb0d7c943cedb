"""What large programs, files and results that go through Redis take of a loop, on either side of it.

beside()   the work of a thread: the same message as one JSON, and in pieces
turns()    a client and a worker, each with a loop of its own, over a redis-server: in each a callback
           notes every half millisecond what processor time the loop's thread used since its last turn
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import tempfile
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from rocstar.sandbox.fabric import RedisFabric, RedisWorker, as_batch
from rocstar.sandbox.fabric.wire import Answer, decode_answers, encode_answers
from rocstar.sandbox.testing import ok
from rocstar.sandbox.types import MAX_OUTPUT_BYTES, MAX_TEXT_BYTES, ExecRequest, ExecResult

WAKE_S = 0.0005
SETTLE_S = 0.1
SMALL_CALLS = 65_536

Work = Callable[[], object]


def results() -> dict[str, ExecResult]:
    return {
        "64 MiB of output, through Redis": ok("x" * MAX_OUTPUT_BYTES),
        "64 MiB of it through Redis, not ASCII": ok("\u00e9\u6f22" * (MAX_OUTPUT_BYTES // 5)),
        "16 MiB of halves of pairs, through Redis": ok("\ud800" * (MAX_TEXT_BYTES // 3)),
        "64 MiB of a result's files, through Redis": replace(ok(), files={"f": os.urandom(MAX_OUTPUT_BYTES)}),
    }


def requests() -> dict[str, ExecRequest]:
    files = {"f": os.urandom(MAX_OUTPUT_BYTES)}
    found = {
        "a program of 16 MiB, through Redis": ExecRequest(code="#" * MAX_TEXT_BYTES),
        "one that is not ASCII, through Redis": ExecRequest(code="\u00e9\u6f22" * (MAX_TEXT_BYTES // 5)),
        "64 MiB of a program's files, through Redis": ExecRequest(code="1", files=files),
    }
    return {name: replace(request, flavour="stdlib") for name, request in found.items()}


def in_one_text(result: ExecResult) -> object:
    """As the fabric did: one call writes it, and one reads it."""
    fields = {"stdout": result.stdout, "files": [b64encode(file).decode() for file in result.files.values()]}
    sent = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
    found = json.loads(sent.decode("utf-8", "surrogatepass"))
    return [b64decode(file) for file in found["files"]]


def in_pieces(result: ExecResult) -> object:
    answer = Answer(ref="stdlib/1-0", call_id=1, outcome=result)
    return decode_answers(*encode_answers([answer], apart=True))


def beside() -> dict[str, tuple[Work, Work]]:
    found = results().items()
    return {name: (partial(in_one_text, result), partial(in_pieces, result)) for name, result in found}


class Turns:
    """Of the loop in which it was started."""

    def __init__(self) -> None:
        self.most_s = 0.0
        self._last_s = 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last_s = time.thread_time()
        self._loop.call_later(WAKE_S, self._wake)

    def _wake(self) -> None:
        now = time.thread_time()
        self.most_s = max(self.most_s, now - self._last_s)
        self._last_s = now
        self._loop.call_later(WAKE_S, self._wake)


@contextmanager
def redis_server() -> Iterator[str]:
    """Its URL. Raises FileNotFoundError where there is none."""
    with tempfile.TemporaryDirectory(prefix="rocstar-redis-") as folder:
        path = Path(folder) / "s"
        command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not path.exists():
                time.sleep(0.01)
            yield f"unix://{path}"
        finally:
            process.kill()
            process.wait()


class Worker:
    """In a thread. It gives `result` for every program."""

    def __init__(self, url: str) -> None:
        self.turns = Turns()
        self.result = ok()
        self._ready, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._work(url)))
        self._thread.start()
        self._ready.wait()

    def end(self) -> None:
        self._ends.set()
        self._thread.join()

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        """As a sandbox that keeps nothing: what it kept the collector would go through."""
        return self.result

    async def _work(self, url: str) -> None:
        self.turns.start()
        worker = RedisWorker(url, as_batch(self), 4)
        running = asyncio.create_task(worker.run())
        await worker.ready.wait()
        self._ready.set()
        while not self._ends.is_set():  # noqa: ASYNC110 - it is another thread's
            await asyncio.sleep(SETTLE_S)
        worker.stop()
        await running


async def turns(rounds: int) -> list[dict[str, Any]]:
    """Rows, the least of the rounds. There are none without a redis-server."""
    rows: list[dict[str, Any]] = []
    with suppress(FileNotFoundError), redis_server() as url:
        worker, here = Worker(url), Turns()
        here.start()
        try:
            async with RedisFabric(url) as fabric:
                small = ExecRequest(code="print(1)", flavour="stdlib")
                cases = [(name, request, ok(), 1) for name, request in requests().items()]
                cases += [(name, small, result, 1) for name, result in results().items()]
                cases.append((f"{SMALL_CALLS:,} calls, through Redis", small, ok(), SMALL_CALLS))
                for name, request, worker.result, number in cases:
                    most = [
                        await _turn_ms(fabric, [request] * number, (here, worker.turns))
                        for _ in range(rounds)
                    ]
                    for side, values in zip(("client", "worker"), zip(*most, strict=True), strict=True):
                        rows.append(
                            {
                                "what": f"{name}: a turn of the {side}",
                                "before_ms": None,
                                "now_ms": min(values),
                            }
                        )
        finally:
            worker.end()
    return rows


async def _turn_ms(fabric: RedisFabric, calls: list[ExecRequest], sides: tuple[Turns, Turns]) -> list[float]:
    gc.collect()
    await asyncio.sleep(SETTLE_S)
    for side in sides:
        side.most_s = 0.0
    if len(calls) == 1:
        await fabric.run(calls[0])
    else:
        async for _ in fabric.run_batch(calls):
            pass
    await asyncio.sleep(SETTLE_S)
    return [round(1e3 * side.most_s, 1) for side in sides]
