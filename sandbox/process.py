"""One zygote process as the pool sees it: a socket, the calls in flight on it, and its death.

    run() --frame--> transport ==socket==> zygote --fork--> child
      ^                                       |
      +--- future <--- data_received <==frame-+

A caller waits for its future; the future is settled by a RESULT or FAILED frame, by the socket's end, or,
should the zygote hang, by the watchdog that kills it. Nobody else waits for anybody.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from rocstar.sandbox import wire
from rocstar.sandbox.types import ExecRequest, ExecResult, SandboxError

START_TIMEOUT_S = 120.0
"""A cold import of the heaviest flavour on a busy machine takes seconds; a hang must still end."""

EXIT_TIMEOUT_S = 10.0

HANG_GRACE_S = 30.0
"""How long after the last possible end of its calls a silent zygote is taken to hang."""

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
"""All that a zygote and its children see. A fixed hash seed makes the order of sets repeatable."""


@dataclass(slots=True)
class _Call:
    request: ExecRequest
    done: asyncio.Future[ExecResult]
    on_end: Callable[[], None]
    latest_end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteOptions:
    flavour: str
    max_live: int
    without: tuple[str, ...] = ()
    python: str = field(default_factory=lambda: sys.executable)


class Zygote(asyncio.Protocol):
    """A running zygote. Invariant: every submitted call's future is settled exactly once and `on_end` is
    called exactly once, when the child is gone or the zygote is."""

    def __init__(self, options: ZygoteOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._frames = wire.FrameBuffer()
        self._calls: dict[int, _Call] = {}
        self._next_id = 0
        self._wall_s_in_flight = 0.0
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._watchdog: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes]
        self.isolation = ""
        self._memory_exit = -1

    @property
    def alive(self) -> bool:
        return not self._lost.done()

    @property
    def pid(self) -> int:
        return self._process.pid

    # --- start and end -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns once the flavour is warm. Raises SandboxError; the process is gone then."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = self._spawn(theirs.fileno(), ours)
        ours.setblocking(False)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._loop.create_unix_connection(lambda: self, sock=ours)
                await self._hello
        except BaseException as error:
            await asyncio.shield(self.close())
            if isinstance(error, TimeoutError):
                message = f"the {self._options.flavour} zygote was not ready after {START_TIMEOUT_S:.0f} s"
                raise SandboxError(message, kind="zygote_start", retryable=True) from None
            raise

    def _spawn(self, fd: int, ours: socket.socket) -> "subprocess.Popen[bytes]":
        options = self._options
        command = [options.python, "-P", "-m", "rocstar.sandbox.zygote", f"--flavour={options.flavour}"]
        command += [f"--fd={fd}", f"--parent={os.getpid()}", f"--max-live={options.max_live}"]
        if options.without:
            command += ["--without", *options.without]
        # HOME only finds the user's site-packages; the zygote forgets it before it serves.
        environment = {**ENVIRONMENT, "HOME": os.path.expanduser("~")}
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(fd,),
                cwd="/",
                env=environment,
                start_new_session=True,  # Ctrl-C is for the trainer, which then closes the socket
            )
        except OSError as error:
            ours.close()
            raise SandboxError(
                f"cannot start {options.python}: {error}", kind="zygote_start", retryable=True
            ) from error

    async def close(self) -> None:
        """Ends the process and every child. Calls in flight get a SandboxError of kind `closed`."""
        self._fail_calls("the pool was closed", "closed", retryable=False)
        if not self.isolation:
            self.kill()  # it reads no socket yet, and it has no children
        if self._transport is not None:
            self._transport.abort()
            await self._lost
        await self._reap()

    def kill(self) -> None:
        """SIGKILL; the kernel then kills the children."""
        self._process.kill()

    async def _reap(self) -> None:
        if self._process.returncode is not None:
            return
        ended = asyncio.Event()
        pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await ended.wait()
        except TimeoutError:
            self._process.kill()
        finally:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._process.wait()

    # --- calls -------------------------------------------------------------------------------------------

    def submit(
        self, request: ExecRequest, on_end: Callable[[], None]
    ) -> "tuple[int, asyncio.Future[ExecResult]]":
        """Sends a call. Raises ValueError for a request that cannot be sent; then `on_end` is not called."""
        self._next_id += 1
        data = wire.encode_run(self._next_id, request)
        # At worst the calls in flight run one after the other.
        self._wall_s_in_flight += request.limits.wall_s
        latest_end = self._loop.time() + self._wall_s_in_flight
        future: asyncio.Future[ExecResult] = self._loop.create_future()
        self._calls[self._next_id] = _Call(request, future, on_end, latest_end)
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(HANG_GRACE_S, self._look_for_hang)
        self._write(data)
        return self._next_id, future

    def cancel(self, call_id: int) -> None:
        """Kills the call's child; `on_end` follows when it is gone."""
        if call_id in self._calls and self.alive:
            self._write(wire.encode_cancel(call_id))

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _settle(self, call_id: int, result: ExecResult | SandboxError) -> None:
        call = self._calls.pop(call_id)
        self._wall_s_in_flight -= call.request.limits.wall_s
        call.on_end()
        if call.done.done():
            return
        if isinstance(result, SandboxError):
            call.done.set_exception(result)
        else:
            call.done.set_result(result)

    def _fail_calls(self, message: str, kind: str, *, retryable: bool) -> None:
        for call_id in list(self._calls):
            self._settle(call_id, SandboxError(message, kind=kind, retryable=retryable))

    def _look_for_hang(self) -> None:
        self._watchdog = None
        if not self._calls:
            return
        if self._loop.time() > HANG_GRACE_S + min(call.latest_end for call in self._calls.values()):
            self.kill()
        else:
            self._watchdog = self._loop.call_later(HANG_GRACE_S, self._look_for_hang)

    # --- asyncio.Protocol --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio.Transport, so an isinstance would refuse them.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._handle(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        message = f"the {self._options.flavour} zygote (pid {self.pid}) died"
        self._fail_calls(message, "zygote_died", retryable=True)
        if not self._hello.done():
            self._hello.set_exception(
                SandboxError(message + " while starting", kind="zygote_start", retryable=True)
            )
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._lost.set_result(None)

    def _handle(self, frame: wire.Frame) -> None:
        if frame.type == wire.RESULT:
            call_id = wire.decode_id(frame.payload)
            request = self._calls[call_id].request
            result = wire.decode_result(
                frame.payload, request=request, isolation=self.isolation, memory_exit=self._memory_exit
            )
            self._settle(call_id, result)
        elif frame.type == wire.FAILED:
            call_id, reason = wire.decode_failed(frame.payload)
            self._settle(call_id, SandboxError(reason, kind="child_start", retryable=True))
        elif frame.type == wire.HELLO:
            hello = json.loads(frame.payload)
            self.isolation, self._memory_exit = hello["isolation"], hello["memory_exit"]
            if not self._hello.done():
                self._hello.set_result(None)
        elif frame.type == wire.FATAL:
            fatal = json.loads(frame.payload)
            if not self._hello.done():
                self._hello.set_exception(SandboxError(fatal["message"], kind=fatal["kind"], retryable=False))
