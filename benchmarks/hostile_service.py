"""Two owners of one service, one of them hostile: latencies and failures of the other.

    python benchmarks/hostile_service.py [--seconds 30] [--out FILE]

    service     <-- the hostile owner, a process of its own: threads without end, sessions that fill scratch,
    (2 tokens)      batches of sleepers, the whole memory budget, slow readers, half requests,
                    nonsense, batches of which each call is refused
                <-- the other: print(1), one after the other, first alone, then beside it
                <-- /healthz, every 20 ms, throughout

Bars: the other's p99 is at most five times its p99 alone, none of its calls fails, and /healthz is answered
within 50 ms. All share the machine's cores: the hostile client's own work as well, in a session of its own.
The measuring process plays a client elsewhere: as root it runs before all others, or it would measure
its own wait for a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from report import claim, finish, result_parser
from sandbox_bench.http_client import Answer, Client, HttpError
from sandbox_bench.load import latency_ms
from sandbox_bench.rocstar_service import service

from rocstar.sandbox.pool.event_loop_priority import set_short_slice
from rocstar.sandbox.pool.pool import default_memory_bytes

HOSTILE_TOKEN, OTHER_TOKEN = "hostile-0123456789abcdef", "another-0123456789abcdef"
PAUSE_S, HEALTH_S = 0.02, 0.02
HEALTH_BAR_MS, SLOWER = 50.0, 5.0
TIMEOUT_S = 60.0

THREADS = """
import threading
threading.stack_size(1 << 15)
stop = threading.Event()
try:
    for _ in range(12_000):
        threading.Thread(target=stop.wait, args=(3,), daemon=True).start()
except RuntimeError: pass
while True: pass
"""
FILL = """
import time
try:
    for n in range(64): open(str(n), "wb").write(b"x" * (4 << 20))
except OSError: pass
"""
SLEEP = "import time; time.sleep(0.2)"
"""Not longer, or an owner whose calls come one after the other would do little else than sleep."""

LOUD = "print('x' * 100_000)"


@dataclass
class Seen:
    """Latencies in seconds, and the failures, of one kind of request."""

    seconds: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)

    def about(self) -> dict[str, float]:
        return latency_ms(self.seconds) | {"calls": len(self.seconds)}


FAILURES = (OSError, TimeoutError, HttpError)


def client_of(port: int, token: str) -> Client:
    return Client("127.0.0.1", port, token)


# --- the other --------------------------------------------------------------------------------------------


async def timed(seen: Seen, asking: Awaitable[Answer], expected: str) -> None:
    """Note the latency of an answer, and a failure unless it is 200 with the expected output."""
    began = time.perf_counter()
    try:
        answer = await asking
        if answer.status != 200 or (expected and answer.json()["stdout"] != expected):
            seen.wrong[f"{answer.status}: {answer.body[:200]!r}"] += 1
    except FAILURES as error:
        seen.wrong[repr(error)[:200]] += 1
    seen.seconds.append(time.perf_counter() - began)


async def print_ones(port: int, seconds: float) -> Seen:
    """print(1), one after the other, each checked."""
    seen, end = Seen(), time.perf_counter() + seconds
    async with client_of(port, OTHER_TOKEN) as client:
        while time.perf_counter() < end:
            code = {"code": "print(1)", "flavour": "stdlib"}
            await timed(seen, client.post("/v1/run", code, timeout_s=TIMEOUT_S), "1\n")
            await asyncio.sleep(PAUSE_S)
    return seen


async def watch_health(port: int, seen: Seen) -> None:
    """Asks on a connection of its own, as a probe does."""
    while True:
        async with client_of(port, "") as client:
            await timed(seen, client.get("/healthz", timeout_s=TIMEOUT_S), "")
        await asyncio.sleep(HEALTH_S)


# --- the hostile one --------------------------------------------------------------------------------------


async def again_and_again(port: int, done: Counter[str], name: str, path: str, body: Any) -> None:
    client = client_of(port, HOSTILE_TOKEN)
    while True:
        with suppress(*FAILURES):
            answer = await client.post(path, body, timeout_s=TIMEOUT_S)
            done[f"{name} {answer.status}"] += 1
        await asyncio.sleep(0.01)


async def fill_scratch(port: int, done: Counter[str], filled: asyncio.Event) -> None:
    """Four sessions, each with all that it may write; opened again when they are lost."""
    client = client_of(port, HOSTILE_TOKEN)
    names: list[str] = []
    while True:
        with suppress(*FAILURES):
            while len(names) < 4:
                answer = await client.post("/v1/sessions", {"flavour": "stdlib"}, timeout_s=TIMEOUT_S)
                done[f"session {answer.status}"] += 1
                if answer.status != 201:
                    break
                names.append(answer.json()["id"])
            for name in list(names):
                path = f"/v1/sessions/{name}/run"
                answer = await client.post(path, {"code": FILL}, timeout_s=TIMEOUT_S)
                done[f"fill {answer.status}"] += 1
                if answer.status != 200:
                    names.remove(name)
            filled.set()
        await asyncio.sleep(0.05)


async def read_nothing(port: int, done: Counter[str]) -> None:
    """A stream of 50 MB of which only the head is read."""
    body = json.dumps({"requests": [{"code": LOUD}] * 500, "stream": True}).encode()
    head = client_of(port, HOSTILE_TOKEN).head("POST", "/v1/batch", body)
    while True:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(head + body)
            await reader.readuntil(b"\r\n")
            done["stream"] += 1
            await asyncio.sleep(5)
            writer.close()


async def half_a_request(port: int, done: Counter[str], token: str) -> None:
    """A head without its end, or a body without its."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            whole = client_of(port, token).head("POST", "/v1/run", b"", length=10_000) + b'{"code": "1"}'
            writer.write(whole if token else whole[: len(whole) // 2])
            done["half" if token else "half a head"] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(2, 15)):
                    await reader.read()
            writer.close()
        await asyncio.sleep(0.05)


async def send_nonsense(port: int, done: Counter[str]) -> None:
    data = b'{"requests":[' + b"[]," * (1 << 20) + b"[]]}"
    head = client_of(port, HOSTILE_TOKEN).head("POST", "/v1/batch", data)
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + data)
            await reader.readuntil(b"\r\n")
            done["nonsense"] += 1
            writer.close()
        await asyncio.sleep(0.2)


async def be_hostile(port: int, memory_bytes: int) -> None:
    """Until it is killed, or its standard input ends; then says how often it did what."""
    done: Counter[str] = Counter()
    sleepers = {"requests": [{"code": SLEEP}] * 60}
    refused = {"requests": [{"code": 1}] * 20_000}
    threads = {"code": THREADS, "limits": {"wall_s": 2.0}}
    budget = {"code": SLEEP, "limits": {"memory_bytes": memory_bytes}}
    work = [
        *(again_and_again(port, done, "threads", "/v1/run", threads) for _ in range(4)),
        again_and_again(port, done, "sleepers", "/v1/batch", sleepers),
        *(again_and_again(port, done, "budget", "/v1/run", budget) for _ in range(2)),
        again_and_again(port, done, "refused", "/v1/batch", refused),
        *(read_nothing(port, done) for _ in range(8)),
        *(half_a_request(port, done, "") for _ in range(300)),
        *(half_a_request(port, done, HOSTILE_TOKEN) for _ in range(50)),
        send_nonsense(port, done),
    ]
    filled = asyncio.Event()  # first, for later they wait behind all else of this owner
    tasks = [asyncio.ensure_future(fill_scratch(port, done, filled))]
    await filled.wait()
    tasks += [asyncio.ensure_future(one) for one in work]
    await asyncio.sleep(1.0)
    print("under way", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    print(json.dumps(done, sort_keys=True))


# --- together ---------------------------------------------------------------------------------------------


def write_tokens(path: Path) -> Path:
    path.write_text(f"hostile {HOSTILE_TOKEN}\nanother {OTHER_TOKEN}\n")
    return path


async def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="rocstar-bench-") as folder:
        tokens = write_tokens(Path(folder, "tokens"))
        serve = [f"--token-file={tokens}", "--flavours=stdlib", f"--memory-bytes={options.memory_bytes}"]
        with service(*serve, *options.serve_option) as server:
            quiet_health, health = Seen(), Seen()
            await print_ones(server.port, 2.0)
            probe = asyncio.create_task(watch_health(server.port, quiet_health))
            quiet = await print_ones(server.port, options.seconds)
            probe.cancel()
            words = [sys.executable, __file__, "--hostile", str(server.port)]
            words.append(f"--memory-bytes={options.memory_bytes}")
            pipe = asyncio.subprocess.PIPE
            hostile = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, start_new_session=True)
            assert hostile.stdout is not None
            async with asyncio.timeout(TIMEOUT_S):
                await hostile.stdout.readline()  # its load is running
            probe = asyncio.create_task(watch_health(server.port, health))
            beside = await print_ones(server.port, options.seconds)
            probe.cancel()
            done, _ = await hostile.communicate(b"")  # it ends with its input
            after = await print_ones(server.port, 3.0)
    result = {
        "seconds": options.seconds,
        "quiet": quiet.about(),
        "beside": beside.about(),
        "after": after.about(),
        "healthz_quiet": quiet_health.about(),
        "healthz": health.about(),
        "wrong": {"beside": beside.wrong, "healthz": health.wrong, "after": after.wrong},
        "hostile": json.loads(done),
    }
    slower = round(beside.about()["p99"] / quiet.about()["p99"], 2)
    failures = beside.wrong.total() + after.wrong.total() + health.wrong.total()
    slowest = health.about()["max"]
    claims = [
        claim("p99 of a call beside a hostile owner over p99 alone", slower, at_most=SLOWER),
        claim("failed calls of the other owner beside a hostile one", failures, "calls", at_most=0),
        claim("slowest answer of /healthz beside a hostile owner", slowest, "ms", at_most=HEALTH_BAR_MS),
    ]
    return finish("hostile_service", result, claims, options.out)


def stand_apart() -> None:
    """Let this process, not its children, run before all others, as a client on another machine would."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        set_short_slice()


def main() -> int:
    parser = result_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the two phases")
    parser.add_argument(
        "--memory-bytes",
        type=int,
        default=default_memory_bytes(),
        help="of all programs together (default: the service's own, %(default)s)",
    )
    parser.add_argument("--serve-option", action="append", default=[], help="further option of `serve`")
    parser.add_argument("--hostile", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hostile is None:
        stand_apart()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.hostile is not None:
            runner.run(be_hostile(options.hostile, options.memory_bytes))
            return 0
        return runner.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
