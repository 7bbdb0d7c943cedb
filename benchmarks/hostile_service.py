"""Two owners of one service, one of them hostile: what the other notices of it.

    python benchmarks/hostile_service.py [--seconds 30] [--as-user UID] [--out FILE]

    service     <-- the hostile owner, a process of its own: threads without end, sessions that fill scratch,
    (2 tokens)      batches of sleepers, the whole memory budget, slow readers, half requests,
                    nonsense, batches of which each call is refused
                <-- the other: print(1), one after the other, first alone, then beside it
                <-- /healthz, every 20 ms, throughout

Bars: the other's p99 is at most five times what it is alone, nothing of it fails, and /healthz is answered
within 50 ms. All share the machine's cores: the hostile client's own work as well, in a session of its own.
The process that measures stands for a client elsewhere: with the right (root) it comes before all others, or
it would measure its own wait. Of the longest requests the result says who ran, and who waited for a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from sandbox_bench.processes import as_user
from sandbox_bench.report import bar, command, finish
from sandbox_bench.rocstar_service import service
from sandbox_bench.stats import latency_ms
from sandbox_bench.waits import Watch, stolen_s, supervisor_of, told

from rocstar.sandbox.pool.pool import default_memory_bytes
from rocstar.sandbox.pool.soon import run_soon

HOSTILE_TOKEN, OTHER_TOKEN = "hostile-0123456789abcdef", "another-0123456789abcdef"
PAUSE_S, HEALTH_S = 0.02, 0.02
HEALTH_BAR_MS, SLOWER = 50.0, 5.0
TIMEOUT_S = 60.0
LONGEST = 5

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
    """Latencies in seconds and what went wrong, of one kind of request. `longest`: where their time went."""

    seconds: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    longest: list[dict[str, float]] = field(default_factory=list)

    def saw(self, seconds: float, watch: Watch) -> None:
        self.seconds.append(seconds)
        self.longest.append(told(seconds, watch.lap()))
        self.longest.sort(key=lambda one: -one["ms"])
        del self.longest[LONGEST:]


class Line:
    """One connection that is kept, and opened again when it was lost."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(request(method, path, self._token, body))
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                return int(head.split()[1]), await reader.readexactly(length)
        except BaseException:  # cancelled, too: what it still answers belongs to nobody
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def request(method: str, path: str, token: str, body: Any = None, *, length: int | None = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Length: {len(data) if length is None else length}\r\n\r\n".encode() + data


# --- the other --------------------------------------------------------------------------------------------


async def print_ones(port: int, seconds: float, watch: Watch) -> Seen:
    """print(1), one after the other, each checked."""
    seen, line = Seen(), Line(port, OTHER_TOKEN)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        watch.lap()
        began = time.perf_counter()
        try:
            status, body = await line.ask("POST", "/v1/run", {"code": "print(1)", "flavour": "stdlib"})
            if status != 200 or json.loads(body)["stdout"] != "1\n":
                seen.wrong[f"{status}: {body[:200]!r}"] += 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            seen.wrong[repr(error)[:200]] += 1
        seen.saw(time.perf_counter() - began, watch)
        await asyncio.sleep(PAUSE_S)
    line.close()
    return seen


async def watch_health(port: int, seen: Seen, watch: Watch) -> None:
    """Asks on a connection of its own, as a probe does."""
    while True:
        watch.lap()
        began = time.perf_counter()
        line = Line(port, "")
        try:
            status, _ = await line.ask("GET", "/healthz")
            if status != 200:
                seen.wrong[str(status)] += 1
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            seen.wrong[repr(error)[:200]] += 1
        finally:
            line.close()
        seen.saw(time.perf_counter() - began, watch)
        await asyncio.sleep(HEALTH_S)


# --- the hostile one --------------------------------------------------------------------------------------


async def again_and_again(port: int, done: Counter[str], name: str, path: str, body: Any) -> None:
    line = Line(port, HOSTILE_TOKEN)
    while True:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            status, _ = await line.ask("POST", path, body)
            done[f"{name} {status}"] += 1
        await asyncio.sleep(0.01)


async def fill_scratch(port: int, done: Counter[str], filled: asyncio.Event) -> None:
    """Four sessions, each with all that it may write; opened again when they are lost."""
    line = Line(port, HOSTILE_TOKEN)
    names: list[str] = []
    while True:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            while len(names) < 4:
                status, body = await line.ask("POST", "/v1/sessions", {"flavour": "stdlib"})
                done[f"session {status}"] += 1
                if status != 201:
                    break
                names.append(json.loads(body)["id"])
            for name in list(names):
                status, _ = await line.ask("POST", f"/v1/sessions/{name}/run", {"code": FILL})
                done[f"fill {status}"] += 1
                if status != 200:
                    names.remove(name)
            filled.set()
        await asyncio.sleep(0.05)


async def read_nothing(port: int, done: Counter[str]) -> None:
    """A stream of 50 MB of which only the head is read."""
    body = {"requests": [{"code": LOUD}] * 500, "stream": True}
    while True:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(request("POST", "/v1/batch", HOSTILE_TOKEN, body))
            await reader.readuntil(b"\r\n")
            done["stream"] += 1
            await asyncio.sleep(5)
            writer.close()


async def half_a_request(port: int, done: Counter[str], token: str) -> None:
    """A head without its end, or a body without its."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            whole = request("POST", "/v1/run", token, {"code": "1"}, length=10_000)
            writer.write(whole if token else whole[: len(whole) // 2])
            done["half" if token else "half a head"] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(2, 15)):
                    await reader.read()
            writer.close()
        await asyncio.sleep(0.05)


async def send_nonsense(port: int, done: Counter[str]) -> None:
    data = b'{"requests":[' + b"[]," * (1 << 20) + b"[]]}"
    head = request("POST", "/v1/batch", HOSTILE_TOKEN, length=len(data))
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
        if options.as_user is not None:
            for path in (Path(folder), tokens):
                os.chown(path, options.as_user, options.as_user)
        serve = [f"--token-file={tokens}", "--flavours=stdlib", f"--memory-bytes={options.memory_bytes}"]
        with service(*serve, *options.serve_option, user=options.as_user) as server:
            pids = {"service": server.pid, "supervisor": supervisor_of(server.pid), "probe": os.getpid()}
            quiet_health, health = Seen(), Seen()
            await print_ones(server.port, 2.0, Watch(**pids))
            probe = asyncio.create_task(watch_health(server.port, quiet_health, Watch(**pids)))
            quiet = await print_ones(server.port, options.seconds, Watch(**pids))
            probe.cancel()
            words = [sys.executable, __file__, "--hostile", str(server.port)]
            words.append(f"--memory-bytes={options.memory_bytes}")
            words += [] if options.as_user is None else [f"--as-user={options.as_user}"]
            pipe = asyncio.subprocess.PIPE
            hostile = await asyncio.create_subprocess_exec(
                *words, stdin=pipe, stdout=pipe, start_new_session=True
            )
            assert hostile.stdout is not None
            async with asyncio.timeout(TIMEOUT_S):
                await hostile.stdout.readline()  # it is under way
            watch, stolen = Watch(**pids), stolen_s()
            probe = asyncio.create_task(watch_health(server.port, health, Watch(**pids)))
            beside = await print_ones(server.port, options.seconds, Watch(**pids))
            probe.cancel()
            stolen, used = stolen_s() - stolen, watch.lap()
            done, _ = await hostile.communicate(b"")  # the end of its input is the end of it
            after = await print_ones(server.port, 3.0, Watch(**pids))
    p99, quiet_p99 = latency_ms(beside.seconds)["p99"], latency_ms(quiet.seconds)["p99"]
    result = {
        "command": command(sys.argv),
        "seconds": options.seconds,
        "user": os.geteuid() if options.as_user is None else options.as_user,
        "quiet": latency_ms(quiet.seconds) | {"calls": len(quiet.seconds)},
        "beside": latency_ms(beside.seconds) | {"calls": len(beside.seconds)},
        "after": latency_ms(after.seconds) | {"calls": len(after.seconds)},
        "healthz_quiet": latency_ms(quiet_health.seconds) | {"calls": len(quiet_health.seconds)},
        "healthz": latency_ms(health.seconds) | {"calls": len(health.seconds)},
        "longest_beside": beside.longest,
        "longest_healthz": health.longest,
        "ran_and_waited_beside_s": {
            name: [round(cpu.ran_s, 2), round(cpu.waited_s, 2)] for name, cpu in used.items()
        }
        | {"stolen": round(stolen, 2)},
        "wrong": {"beside": beside.wrong, "healthz": health.wrong, "after": after.wrong},
        "hostile": json.loads(done),
    }
    failures = beside.wrong.total() + after.wrong.total() + health.wrong.total()
    bars = [
        bar("p99 beside / alone", round(p99 / quiet_p99, 2), SLOWER, at_most=True),
        bar("failures of the other", failures, 0, at_most=True),
        bar("/healthz at most, ms", latency_ms(health.seconds)["max"], HEALTH_BAR_MS, at_most=True),
    ]
    return finish("hostile_service", result, bars, options.out)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of each of the two phases")
    parser.add_argument(
        "--memory-bytes",
        type=int,
        default=default_memory_bytes(),
        help="of all programs together (default: the service's own, %(default)s)",
    )
    text = "run the service and the hostile owner as this user, which takes root"
    parser.add_argument("--as-user", type=int, metavar="UID", help=text)
    parser.add_argument("--serve-option", action="append", default=[], help="further option of `serve`")
    parser.add_argument("--hostile", type=int, metavar="PORT", help=argparse.SUPPRESS)
    default = Path(__file__).parent / "results" / "hostile_service.json"
    parser.add_argument("--out", type=Path, default=default, help="where the JSON goes")
    return parser


def stand_apart() -> None:
    """Who measures stands for clients on other machines: it does not wait for a core, where it may ask for
    that. What it starts does."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        run_soon()


def become(user: int) -> None:
    """For good."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def why_not(user: int) -> str:
    """What keeps this benchmark from having a service of that user; empty when nothing does."""
    words = [sys.executable, "-c", "import rocstar.sandbox.cli"]
    try:
        done = subprocess.run(words, cwd="/", check=False, **as_user(user))
    except PermissionError as error:
        return f"--as-user {user}: {error}; it takes root, and a Python that all may read"
    return "" if done.returncode == 0 else f"--as-user {user} cannot import rocstar with {sys.executable}"


def main() -> int:
    options = build_parser().parse_args()
    if options.hostile is not None and options.as_user is not None:
        become(options.as_user)
    elif options.as_user is not None and (problem := why_not(options.as_user)):
        print(f"hostile_service: {problem}", file=sys.stderr)
        return 2
    if options.hostile is None:
        stand_apart()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.hostile is not None:
            runner.run(be_hostile(options.hostile, options.memory_bytes))
            return 0
        return runner.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
