"""A server that is started, watched and restarted, as one `Inference`.

    start ─> wait ready ─> connect ─> serve ──(dies | hangs)──> stop the tree ─> start again
                             ^         ^  │                                       │
                             │         │  └── suspend ─> stop the tree            │
               resume ───────┘         └────── the present weights ───────────────┘

`__aenter__` and `resume` wait until the server serves; no call waits for a restart. While it is down
`generate` raises InferenceError(retryable=True) immediately, so that trajectories continue elsewhere;
`wait_ready` waits for it. A restarted server serves nothing until it holds the weights of the present
version: from their folder, which `keep` may name after a broadcast; without a folder, at the next publish. If
checksums cannot be predicted, answers after new weights wait for the canary (canary.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rocstar.engine.inference.base import Generation, Heard, Inference, InferenceError, KvLoad
from rocstar.engine.inference.sglang.api import Api
from rocstar.engine.inference.sglang.canary import Canary
from rocstar.engine.inference.sglang.checksums import differences, expected_checksums
from rocstar.engine.inference.sglang.engine import SGLangEngine
from rocstar.engine.inference.sglang.sender import DRAIN_S, WeightSender
from rocstar.engine.inference.sglang.server import Launcher, ServerProcess, free_port
from rocstar.engine.inference.weights import DiskWeights, WeightSource

LOG = logging.getLogger(__name__)
RESTARTED_FOR = ("replica_hung", "replica_lost")
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""Between restarts that fail, doubling from the first."""
SERVER_ENV: dict[str, str | None] = {
    "SGLANG_RETURN_ORIGINAL_LOGPROB": None,  # log-probs must be of log_softmax(logits / T)
    "HF_HUB_OFFLINE": "1",
    # A server whose scheduler has crashed would stay for 65 s, silent, to write dumps.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}


def server_command(python: str | Path, model: Path, port: int, args: Mapping[str, object]) -> list[str]:
    """`[engine.args]` verbatim: `mem-fraction-static = 0.8` is `--mem-fraction-static 0.8`, true a bare flag,
    false nothing, a list its items. Underscores in names become dashes."""
    command = [str(python), "-m", "sglang.launch_server", "--model-path", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    for name, value in args.items():
        flag = "--" + name.replace("_", "-")
        if flag in ("--model-path", "--host", "--port"):
            raise ValueError(f"[engine.args] {name} = {value!r}: rocstar sets it itself; leave it out")
        if value is False:
            continue
        command.append(flag)
        if value is not True:
            command += [str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]
    return command


class Replica(Inference):
    """Invariant: all tokens come from a server that holds exactly the weights of `engine.version`.

    Args:
        command: returns the command line that starts a server at a port (`server_command`).
        model: the folder it starts from.
        log_path: RUN/logs/sglang-K.log.
        max_restarts: total restarts; after them the replica stays down.
        engine_options: keyword arguments of SGLangEngine.
        canary: the check for servers whose checksums cannot be predicted.
        launcher: starts the server's process.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        model: DiskWeights,
        vocab_size: int,
        log_path: Path,
        version: int = 0,
        env: Mapping[str, str | None] | None = None,
        ready_timeout_s: float = 1200.0,
        max_restarts: int = 100,
        progress: Callable[[str], None] = LOG.info,
        engine_options: Mapping[str, Any] | None = None,
        canary: Canary | None = None,
        launcher: Launcher = ServerProcess,
    ) -> None:
        self._launcher = launcher
        self._command, self._model, self.log_path = command, model, log_path
        self._env = {**SERVER_ENV, **(env or {})}
        self._ready_timeout_s, self._max_restarts, self._progress = ready_timeout_s, max_restarts, progress
        self._present: tuple[int, DiskWeights | None] = (version, model)
        """The present version and where its weights lie; None after a broadcast. Always set together: a
        server that starts meanwhile must not serve one version's weights as another's."""
        self._canary = canary
        self._trusted = asyncio.Event()
        self._trusted.set()
        self._spoiled: set[int] = set()
        """Versions whose canary failed: their tokens are discarded."""
        self.restarts = 0
        self.engine = SGLangEngine(
            "http://127.0.0.1:0", vocab_size=vocab_size, model=model, version=version, **(engine_options or {})
        )
        self._server: ServerProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Replica:
        await self._start()
        try:
            await self.engine.__aenter__()
        except BaseException:  # cancelled, too: the server must not outlive who started it
            await self._stop_server()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="sglang-supervisor")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end_supervision()
        try:
            await self.engine.__aexit__(None, None, None)
        finally:
            await self._stop_server()

    @property
    def ready(self) -> bool:
        return self.engine.broken is None

    async def wait_ready(self, deadline: float | None) -> None:
        """Until the server serves. TimeoutError past `deadline` on the loop's clock."""
        async with asyncio.timeout_at(deadline):
            await self.engine.serves.wait()

    async def restart(self) -> Replica:
        """Stop the server, even one that seems well; returns when another serves. For a fleet."""
        if self.engine.broken is None or self.engine.broken.kind not in RESTARTED_FOR:
            self.engine.break_off(InferenceError("replica_lost", "a restart was asked for", retryable=True))
        await self.engine.serves.wait()
        return self

    async def suspend(self) -> None:
        """Stop the server. Running requests return as aborted, with their tokens."""
        await self._end_supervision()
        suspended = InferenceError("suspended", f"{self.log_path}: stopped on purpose", retryable=True)
        if self.engine.broken is None:
            self.engine.broken = suspended  # accept nothing new; requests in flight may still end
            try:
                await self.engine.api.abort_all()
                await self.engine.drained(DRAIN_S)
            except InferenceError as error:
                LOG.info("%s", error)
        self.engine.break_off(suspended)
        await self._stop_server()

    async def resume(self, version: int, model: DiskWeights) -> None:
        """Start the server again, from `model`, and serve it as `version`.

        The caller's command starts it from there. InferenceError if it does not come up, or serves something
        else; it is then tried again like a server that died.
        """
        self._model = model
        self.keep(version, model)
        try:
            await self._serve_again()
        except InferenceError as error:
            await self._stop_server()
            self.engine.break_off(InferenceError("replica_lost", str(error), retryable=True))
            raise
        finally:
            self._supervisor = asyncio.create_task(self._supervise(), name="sglang-supervisor")

    def keep(self, version: int, source: DiskWeights) -> None:
        """Set the weights of servers that start from now on; one that is down will serve them as
        `version`."""
        self._present = (version, source)
        if self.engine.broken is not None and version > self.engine.version:
            self.engine.allow(version)
            self.engine.version = version

    async def _end_supervision(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait([supervisor])

    async def _start(self) -> None:
        port = free_port()
        self.engine.api.url = f"http://127.0.0.1:{port}"
        self._server = self._launcher(self._command(port), log_path=self.log_path, env=self._env)
        await self._server.start()
        try:
            async with Api(self.engine.api.url) as probe:
                await self._server.wait_ready(probe.answers, deadline_s=self._ready_timeout_s, progress=self._progress)
        except BaseException:  # cancelled, too: the server must not outlive who started it
            await self._stop_server()
            raise

    async def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()

    async def _supervise(self) -> None:
        while self.restarts < self._max_restarts:
            if self._server is None:
                await self._restart("it did not start")
                continue
            ended = asyncio.ensure_future(self._server.wait())
            hung = asyncio.ensure_future(self.engine.wait_broken(*RESTARTED_FOR))
            try:
                # Both are looked at afterwards: a dead server also breaks the engine.
                await asyncio.wait([ended, hung], return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended.cancel()
                hung.cancel()
            why = f"exit status {self._server.returncode}" if ended.done() else str(self.engine.broken)
            self.engine.break_off(InferenceError("replica_lost", f"{self.log_path}: {why}", retryable=True))
            await self._stop_server()
            await self._restart(why)

    async def _restart(self, why: str) -> None:
        pause_s = FIRST_PAUSE_S
        while self.restarts < self._max_restarts:
            self.restarts += 1
            LOG.warning("inference server lost (%s), start number %d", why, self.restarts + 1)
            try:
                await self._serve_again()
            except (InferenceError, OSError) as error:  # no process, no room on the disk: tried again, too
                why = str(error)
                LOG.error("%s", why)
                await self._stop_server()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                continue
            return

    async def _serve_again(self) -> None:
        """Start the server with the weights of the present version, and try it out."""
        await self._start()
        await self.engine.examine()
        with self.on_trial():
            await self.restore()
            await self.try_out()

    async def restore(self) -> None:
        """The weights of the present version into a server that has those of the model's folder.

        Nothing to do if a publish that was under way has reached it.
        """
        async with self.engine.publishing:
            if self.engine.broken is None:
                return
            version, source = self._present
            if source is None or version < self.engine.version:
                detail = "started again, waiting for the next publish"
                self.engine.broken = InferenceError("weights_behind", detail, retryable=True)
                return
            try:
                await asyncio.to_thread(source.shapes)  # it may be on its way to the disk
            except (OSError, ValueError) as error:
                raise InferenceError("weights_behind", f"{source.path}: {error}", retryable=True) from error
            if version > self.engine.version:
                self.engine.allow(version)
            if source is self._model:
                await self._check_start(source)
                await self.engine.serve_as(version)
                return
        sender = WeightSender([self.engine], timeout_s=self.engine.update_timeout_s)
        await sender.restore(version, source, self.engine)

    async def _check_start(self, source: DiskWeights) -> None:
        """A server that was started from `source` holds it."""
        if self.engine.dtype is not None:
            names, dtype = list(self.engine.checksums), self.engine.dtype
            expected = await asyncio.to_thread(expected_checksums, source, names, dtype)
            if expected is not None and (wrong := differences(expected, self.engine.checksums)):
                detail = f"started from {source.path}, {len(wrong)} tensors differ, {wrong[0]} first"
                raise InferenceError("wrong_weights", detail, retryable=True)

    # ---- the protocol ----

    async def generate(self, ids: list[int], *, deadline: float | None, **rest: Any) -> Generation:
        generation = await self.engine.generate(ids, deadline=deadline, **rest)
        async with asyncio.timeout_at(deadline):
            await self._trusted.wait()
        if any(version in self._spoiled for _, _, version in generation.version_spans):
            raise InferenceError("wrong_weights", "the canary failed", retryable=True)
        return generation

    def load(self) -> KvLoad:
        return self.engine.load()

    async def publish(self, version: int, source: WeightSource | None = None) -> None:
        if version == self.engine.version and self.ready:
            return  # a restart has brought it there
        with self.on_trial():
            await self.engine.publish(version, source)
            self.holds(source)
            await self.try_out()

    @contextlib.contextmanager
    def on_trial(self) -> Iterator[None]:
        """Answers that come within the block are given when it ends."""
        self._trusted.clear()
        try:
            yield
        finally:
            self._trusted.set()

    async def try_out(self) -> None:
        """Where no checksum vouches for the weights: InferenceError unless the canary does; nothing is served
        then."""
        if self._canary is None or self.engine.dtype is not None or self.engine.broken is not None:
            return
        try:
            await self._canary.check(self.engine)
        except InferenceError as error:
            self._spoiled.add(self.engine.version)
            self.engine.break_off(InferenceError("wrong_weights", str(error), retryable=True))
            raise
        self._spoiled.discard(self.engine.version)

    def holds(self, source: WeightSource | None) -> None:
        """Record that a WeightSender loaded `source` into `engine`; a restarted server must load it too."""
        self._present = (self.engine.version, source if isinstance(source, DiskWeights) else None)

    async def abort(self, request_id: str) -> None:
        await self.engine.abort(request_id)

    def on_tokens(self, request_id: str, heard: Heard) -> None:
        """Tokens that arrive before the weights are verified are delivered at the end of the turn, if they
        pass."""

        def told(place: int, token: int, logprob: float) -> None:
            if self._trusted.is_set():
                heard(place, token, logprob)

        self.engine.on_tokens(request_id, told)

    def release(self, request_id: str) -> None:
        self.engine.release(request_id)


def sglang_python() -> str:
    """The interpreter with SGLang: $ROCSTAR_SGLANG_PYTHON, or .venv-sglang of this checkout, or our own."""
    named = os.environ.get("ROCSTAR_SGLANG_PYTHON")
    made = Path(__file__).resolve().parents[3] / ".venv-sglang/bin/python"
    return named or (str(made) if made.exists() else sys.executable)


@dataclass(slots=True, kw_only=True, eq=False)
class BroadcastToAll:
    """A `SendToAll` (fleet/replicas.py): the servers of one node join one group with this process."""

    backend: str
    """The backend of the collective: "gloo" or "nccl"."""
    folder: Path
    """Where weights lie that go by disk, as a broadcast of theirs failed."""
    timeout_s: float
    """The time of one call that carries weights."""
    _sender: WeightSender | None = None

    async def __call__(
        self, replicas: Sequence[Inference], version: int, source: WeightSource | None
    ) -> Sequence[InferenceError | None]:
        assert source is not None, "servers share no weights with us"
        servers = cast("Sequence[Replica]", replicas)
        engines = [server.engine for server in servers]
        if self._sender is None or self._sender.engines != engines:
            await self.close()
            self._sender = WeightSender(engines, backend=self.backend, folder=self.folder, timeout_s=self.timeout_s)
        with contextlib.ExitStack() as stack:
            for server in servers:
                stack.enter_context(server.on_trial())
            failures = await self._sender.send(version, source)
            return await asyncio.gather(*(_tried(s, source, f) for s, f in zip(servers, failures, strict=True)))

    async def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.__aexit__(None, None, None)


async def _tried(server: Replica, source: WeightSource, failure: InferenceError | None) -> InferenceError | None:
    if failure is not None:
        return failure
    server.holds(source)
    try:
        await server.try_out()
    except InferenceError as error:
        return error
    return None
