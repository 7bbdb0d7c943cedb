"""Chaos in the fabric: a worker is killed, and Redis is killed and restarted, while calls are under way.

    python benchmarks/fabric_chaos.py [--out FILE]

    nodes     2 worker processes with real pools and one redis-server, all on this machine
    load      4 lanes of run_batch, 32 programs each, every program with its own number
    events    in turn: SIGKILL of a worker (another is started), SIGKILL of Redis and its restart without
              persistence, the same with appendonly (fsync every second)
    recovery  from the kill until the last call that was open then has its answer

No call may be lost (end in an error, or never), none answered twice, every recovery within 5 s. Then the
cost of the fabric alone: CPU per call of client and worker together, and of redis-server, for batches of 64
whose programs cost nothing. Needs redis-server on PATH.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sandbox_bench.numbered import Load
from sandbox_bench.report import bar, finish
from sandbox_bench.stats import median

from rocstar.sandbox.bench import table
from rocstar.sandbox.fabric import RedisFabric, RedisWorker
from rocstar.sandbox.testing import ok
from rocstar.sandbox.types import ExecRequest, ExecResult

LANES, BATCH = 4, 32
RECOVERY_BAR_S = 5.0
CPU_BAR_US = 100.0
EVENT_TIMEOUT_S = 60.0
START_TIMEOUT_S = 30.0
OVERHEAD_BATCH = 64

EVENTS = ("worker", "redis", "redis with appendonly")


class Nodes:
    """redis-server and two workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"unix://{folder}/redis.sock"
        self._redis: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    def start_redis(self) -> None:
        options = ["--port", "0", "--unixsocket", f"{self._folder}/redis.sock", "--save", ""]
        self._redis = subprocess.Popen(
            ["redis-server", *options, "--dir", str(self._folder), "--appendonly", self._appendonly()],
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        wait_for_line(self._redis.stdout, "ready to accept connections")

    def _appendonly(self) -> str:
        return "yes" if (self._folder / "keep").exists() else "no"

    def keep_data(self, keep: bool) -> None:
        """Before a kill: whether Redis shall find its data again. Switches the running server too."""
        (self._folder / "keep").touch() if keep else (self._folder / "keep").unlink(missing_ok=True)
        setting = ["config", "set", "appendonly", self._appendonly()]
        command = ["redis-cli", "-s", f"{self._folder}/redis.sock", *setting]
        subprocess.run(command, check=True, capture_output=True, timeout=10)
        if not keep:
            shutil.rmtree(self._folder / "appendonlydir", ignore_errors=True)

    def start_worker(self) -> None:
        command = [str(Path(sys.executable).with_name("rocstar")), "sandbox", "worker"]
        command += ["--flavours", "stdlib"]
        environment = {**os.environ, "ROCSTAR_REDIS_URL": self.url}
        worker = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, bufsize=0)
        wait_for_line(worker.stderr, "ready")
        self._workers.append(worker)

    def kill_worker(self) -> None:
        end(self._workers.pop(0))

    def kill_redis(self) -> None:
        assert self._redis is not None
        end(self._redis)

    @property
    def redis_cpu_s(self) -> float:
        assert self._redis is not None
        fields = Path(f"/proc/{self._redis.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        for process in [*self._workers, *([self._redis] if self._redis else [])]:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def wait_for_line(stream: Any, text: str) -> None:
    lines = []
    while select.select([stream], [], [], START_TIMEOUT_S)[0]:
        lines.append(stream.readline().decode())
        if text in lines[-1].lower():
            return
        if not lines[-1]:
            break
    raise RuntimeError("a process did not start:\n" + "".join(lines))


async def one_event(nodes: Nodes, load: Load, name: str) -> dict[str, Any]:
    if name != "worker":
        await asyncio.to_thread(nodes.keep_data, name != "redis")
    open_then, answers_then = set(load.open), sum(load.answers.values())
    killed_at = time.monotonic()
    if name == "worker":
        nodes.kill_worker()
        replacing = asyncio.create_task(asyncio.to_thread(nodes.start_worker))
    else:
        nodes.kill_redis()
        replacing = asyncio.create_task(asyncio.to_thread(nodes.start_redis))
    async with asyncio.timeout(EVENT_TIMEOUT_S):
        await load.answered(open_then)
        recovery_s = time.monotonic() - killed_at
        await replacing
    others = sum(load.answers.values()) - answers_then - len(open_then)
    return {"event": name, "open": len(open_then), "recovery_s": round(recovery_s, 3), "others": others}


async def chaos(options: argparse.Namespace, nodes: Nodes) -> dict[str, Any]:
    events = []
    async with RedisFabric(nodes.url) as fabric:
        load = Load(fabric, batch=BATCH)
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(LANES):
                group.create_task(load.lane())
            try:
                for number in range(len(EVENTS) * options.kills):
                    await asyncio.sleep(options.every)
                    event = await one_event(nodes, load, EVENTS[number % len(EVENTS)])
                    events.append(event)
                    print(event, flush=True)
            finally:
                load.stopping = True
        seconds = time.monotonic() - started
        return {"events": events, "load": load, "seconds": seconds, "client": dict(fabric.counters())}


class Costless:
    """A sandbox whose programs take no time: what is left is the fabric."""

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        return ok("1\n")

    async def run_batch(self, requests: Any, *, deadline: float | None = None) -> Any:
        for index, _ in enumerate(requests):
            yield index, ok("1\n")


async def overhead(options: argparse.Namespace, nodes: Nodes) -> dict[str, float]:
    worker = RedisWorker(nodes.url, Costless(), 64, prefix="overhead")
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(worker.ready.wait(), EVENT_TIMEOUT_S)
    requests = [ExecRequest(code=f"print({index})") for index in range(OVERHEAD_BATCH)]
    async with RedisFabric(nodes.url, prefix="overhead") as fabric:
        for measured in (False, True):
            cpu_s, redis_s, wall = time.process_time(), nodes.redis_cpu_s, time.monotonic()
            for _ in range(options.batches if measured else 10):
                async for _ in fabric.run_batch(requests):
                    pass
        calls = options.batches * OVERHEAD_BATCH
        result = {
            "calls": calls,
            "client_and_worker_us_per_call": (time.process_time() - cpu_s) / calls * 1e6,
            "redis_us_per_call": (nodes.redis_cpu_s - redis_s) / calls * 1e6,
            "calls_per_s": calls / (time.monotonic() - wall),
        }
    worker.stop()
    await running
    return result


def report(options: argparse.Namespace, outcome: dict[str, Any], cost: dict[str, float]) -> int:
    load, events = outcome["load"], outcome["events"]
    bad = load.lost + load.wrong
    rows, bars = [], []
    for name in EVENTS:
        times = [event["recovery_s"] for event in events if event["event"] == name]
        rows.append([name, len(times), median(times), max(times)])
        bars.append(
            bar(f"slowest recovery after a kill: {name}, s", max(times), RECOVERY_BAR_S, at_most=True)
        )
    print(table(("killed", "times", "median recovery s", "slowest"), rows), end="\n\n")
    for text in bad[:10]:
        print(f"not right: {text}")
    bars += [
        bar("calls that ended wrongly, in an error or never", len(bad) + load.missing, 0, at_most=True),
        bar("calls answered twice", load.twice, 0, at_most=True),
        bar(
            "CPU of client and worker per call in batches of 64, us",
            cost["client_and_worker_us_per_call"],
            CPU_BAR_US,
            at_most=True,
        ),
    ]
    result = {
        "calls": load.asked,
        "seconds": round(outcome["seconds"], 2),
        "longest_gap_between_answers_s": round(load.longest_gap_s, 3),
        "events": events,
        "client": outcome["client"],
        "overhead": {name: round(value, 2) for name, value in cost.items()},
        "not_right": bad[:20],
    }
    return finish("fabric_chaos", result, bars, options.out)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=5, help="of each kind")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between kills")
    parser.add_argument("--batches", type=int, default=300, help="of 64 calls, for the cost of the fabric")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is not on PATH; apt-get install redis-server")
    with tempfile.TemporaryDirectory(prefix="rocstar-redis-") as folder:
        nodes = Nodes(Path(folder))
        try:
            nodes.start_redis()
            cost = asyncio.run(overhead(options, nodes))
            for _ in range(2):
                nodes.start_worker()
            outcome = asyncio.run(chaos(options, nodes))
        finally:
            nodes.stop()
    return report(options, outcome, cost)


if __name__ == "__main__":
    sys.exit(main())
