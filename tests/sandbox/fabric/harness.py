"""Redis servers on unix sockets, workers, clients, and a sandbox whose programs end when the test says so."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rocstar.sandbox.fabric import RedisFabric, RedisWorker
from rocstar.sandbox.fabric.wire import Answer, EntryDraft, WireCall, WrittenAnswers, WrittenEntry
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError
from tests.fakes.sandbox import ok

from ... import needs
from ...patience import PATIENCE_S

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def die_with_the_tests() -> None:
    """Even when they are killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class RedisServer:
    """One redis-server process. `kill` and `start` again is a restart with the same data directory."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._command = ["redis-server", "--port", "0", "--unixsocket", str(self.socket)]
        self._command += ["--dir", str(folder), "--save", "", *options]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_the_tests
        )
        assert self._process.stdout is not None
        log = []
        for line in self._process.stdout:
            log.append(line)
            if "ready to accept connections" in line.lower():
                return
        raise AssertionError("redis-server did not start:\n" + "".join(log))

    def kill(self) -> None:
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def restart(self) -> None:
        self.kill()
        self.start()

    def cli(self, *command: str, last: bytes | None = None) -> str:
        """The output of a command. last: one more argument, of any bytes."""
        full = ["redis-cli", "-s", str(self.socket), *(() if last is None else ("-x",)), *command]
        return subprocess.run(full, input=last, capture_output=True, check=True, timeout=PATIENCE_S).stdout.decode()


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    needs.redis_server()
    # A socket's path holds 107 bytes, which pytest's own folders exceed.
    with tempfile.TemporaryDirectory(prefix="rocstar-redis-") as folder:
        server = RedisServer(Path(folder), *options)
        server.start()
        try:
            yield server
        finally:
            server.kill()


class Programs:
    """A sandbox whose programs are `say TEXT`, `nap TEXT` (10 ms), `wait NAME` (until `open(NAME)`) and
    `fail KIND TIMES`."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self._gates: dict[str, asyncio.Event] = {}

    def open(self, name: str) -> None:
        self._gate(name).set()

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        self.runs[request.code] += 1
        verb, _, rest = request.code.partition(" ")
        try:
            if verb == "wait":
                async with asyncio.timeout_at(deadline):
                    await self._gate(rest).wait()
            elif verb == "fail":
                kind, times = rest.split()
                if self.runs[request.code] <= int(times):
                    raise SandboxError("planned", kind=kind, retryable=kind != "unknown_flavour")
            await asyncio.sleep(0.01 if verb == "nap" else 0)
        except asyncio.CancelledError:
            self.cancelled[request.code] += 1
            raise
        except TimeoutError:
            raise SandboxError("late", kind="deadline", retryable=True) from None
        self.ended[request.code] += 1
        return ok(rest)

    async def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, ExecResult | SandboxError]]:
        async def outcome_of(index: int) -> tuple[int, ExecResult | SandboxError]:
            try:
                return index, await self.run(requests[index], deadline=deadline)
            except SandboxError as error:
                return index, error

        tasks = [asyncio.create_task(outcome_of(index)) for index in range(len(requests))]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def working(url: str, sandbox: Any, capacity: int = 4, **options: Any) -> AsyncIterator[RedisWorker]:
    """A worker in this process, stopped at the end."""
    # Idle claims are taken over late, so that a busy machine does not look like a dead worker.
    defaults = {"heartbeat_s": 0.05, "claim_idle_s": 5.0, "drain_s": 0.0, "patience_s": PATIENCE_S}
    options = {**defaults, **options}
    worker = RedisWorker(url, sandbox, capacity, **options)
    task = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            ready = asyncio.create_task(worker.ready.wait())
            await asyncio.wait([ready, task], return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE_S):
            await task


@contextlib.asynccontextmanager
async def dying(url: str, sandbox: Any, capacity: int = 4, **options: Any) -> AsyncIterator[RedisWorker]:
    """A worker that is cut off at the end, as by SIGKILL: it hands nothing back."""
    options = {"heartbeat_s": 0.05, "claim_idle_s": 0.5, "patience_s": PATIENCE_S, **options}
    worker = RedisWorker(url, sandbox, capacity, **options)
    task = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await worker.ready.wait()
        yield worker
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Waits for a condition that no event announces."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"never came true: {what or condition}") from None


class ImpatientFabric(RedisFabric):
    """A test that waits for a lost call fails instead of hanging."""

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        async with asyncio.timeout(PATIENCE_S):
            return await super().run(request, deadline=deadline)


def client(url: str, **options: Any) -> RedisFabric:
    return ImpatientFabric(url, **{"audit_s": 0.05, "patience_s": 2 * PATIENCE_S, **options})


async def gather(fabric: Any, codes: list[str], **options: Any) -> dict[int, Any]:
    """The outcomes of a batch, each index once."""
    outcomes: dict[int, Any] = {}
    async with asyncio.timeout(PATIENCE_S):
        async for index, outcome in fabric.run_batch([ExecRequest(code=code) for code in codes], **options):
            assert index not in outcomes
            outcomes[index] = outcome
    return outcomes


WORKER = """
from rocstar.sandbox.cli import build_parser
options = build_parser().parse_args()
raise SystemExit(options.run(options))
"""


def iter_until_ready(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if "ready," in line:
            return


@contextlib.contextmanager
def worker_process(url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`rocstar sandbox worker` with a real pool, ready to work."""
    environment = {**os.environ, "ROCSTAR_REDIS_URL": url}
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, "worker", "--flavours", "stdlib", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=die_with_the_tests,
    )
    assert process.stderr is not None
    try:
        seen = [*iter_until_ready(process.stderr)]
        assert "ready" in seen[-1], "".join(seen)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def encode_entry(calls: Sequence[WireCall]) -> bytes:
    draft = EntryDraft([(call.id, call.request) for call in calls])
    return draft.encode([call.remaining_s for call in calls])


def decode_entry(blob: bytes, chunks: Sequence[bytes] = ()) -> list[WireCall]:
    return WrittenEntry(blob).calls(chunks)


def decode_answers(blob: bytes, chunks: Sequence[bytes] = ()) -> list[Answer]:
    return WrittenAnswers(blob).answers(chunks)
