"""The sandbox of one node: a supervisor process with its zygotes, bounded, restarted when it dies.

    run / run_batch / session.run
        -> room (max_queued) -> queue -> window -> supervisor -> zygote -> child
                                            ^                       |
                                            +---- RESULT frame <----+

A caller waits first for room (that is the back-pressure), then for its future. The window is what the
supervisor holds at a time: enough that a finished child is followed by the next without asking a busy event
loop, few enough that little is lost with it. Calls that were lost with a supervisor are sent again, for
programs have no effect outside; calls of sessions are not, for their state is gone.
"""

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rocstar.sandbox import wire
from rocstar.sandbox.cpp import CPP, DEFAULT_COMMAND, DEFAULT_COMPILE_S, CppOptions
from rocstar.sandbox.flavours import FLAVOURS
from rocstar.sandbox.process import Supervisor, SupervisorOptions
from rocstar.sandbox.session import LiveSession
from rocstar.sandbox.types import (
    DEFAULT_LIMITS,
    ExecRequest,
    ExecResult,
    Limits,
    SandboxError,
    SessionLost,
    check_seed,
)

LAYERS = ("seccomp", "landlock", "uid", "notify", "scratch", "namespaces", "cgroup")
"""Layers that can be left out, for tests of what the others hold."""

AUTO = "auto"
"""The flavour that is chosen by what a program imports."""

MAX_ATTEMPTS = 4
"""A call that was lost so often with its supervisor is given up."""

HANG_GRACE_S = 60.0
"""How long after the last possible end of its calls a silent supervisor is taken to hang."""


def default_max_live() -> int:
    """Children at a time: one and a half per core keep the cores busy and hardly stretch wall clocks."""
    return max(2, len(os.sched_getaffinity(0)) * 3 // 2)


def default_memory_bytes() -> int:
    """Three quarters of what this machine or container has."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int(Path(limit).read_text()))
    return min(found) * 3 // 4


def seed_of(request: ExecRequest) -> int:
    """64 bits that follow from the program and its input."""
    text = f"{len(request.code)}:{request.code}{request.stdin}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@dataclass(slots=True, eq=False)
class _Call:
    """encode: the frame, given the call's id. restartable: it can be sent to another supervisor. opens: the
    limits of the session that it starts. session: whose cell or branch it is. then: called once the
    supervisor has answered, which a caller that was cancelled does not wait for."""

    encode: Callable[[int], bytes]
    future: asyncio.Future[Any]
    wall_s: float
    restartable: bool
    opens: Limits | None = None
    session: LiveSession | None = None
    then: Callable[[], None] | None = None
    id: int = 0
    attempts: int = 0


class SandboxPool:
    """Runs programs in confined children of warm zygotes. Use it as an async context manager.

    flavours: the zygotes to start (see flavours.py). max_live: children at work at a time. max_queued: calls
    that wait beyond those; further callers wait in `run`. memory_bytes: what the calls under way may take
    together, by their limits, and idle sessions hold. max_sessions, lease_s: how many interpreters live
    between cells, and how long one may be idle; the least recently used gives way. replicas: zygotes per
    flavour. deterministic: a program without a seed gets one that follows from its text, so that the same
    call has the same random numbers each time. allow_no_isolation: start even below tier A; every result
    then says so. without: layers to leave out, for tests. cpp_command, compile_s: of the C++ flavour, see
    cpp.py.

    Invariants: every `run` ends in exactly one result, SandboxError or cancellation; when `run` was cancelled
    or its deadline passed, the child is killed; after the context ends no process of the pool is left.
    """

    def __init__(
        self,
        flavours: Sequence[str] = ("stdlib",),
        *,
        max_live: int | None = None,
        max_queued: int = 1 << 16,
        memory_bytes: int | None = None,
        max_sessions: int = 1024,
        lease_s: float = 600.0,
        replicas: int | None = None,
        deterministic: bool = False,
        allow_no_isolation: bool = False,
        without: Collection[str] = (),
        cpp_command: str = DEFAULT_COMMAND,
        compile_s: float = DEFAULT_COMPILE_S,
    ) -> None:
        live = default_max_live() if max_live is None else max_live
        if live < 1 or max_queued < 0 or max_sessions < 0:
            raise ValueError(
                f"max_live={live}, max_queued={max_queued}, max_sessions={max_sessions}: at least 1, 0 and 0 "
                "are needed"
            )
        for name in flavours:
            if name not in FLAVOURS:
                raise ValueError(f"unknown flavour {name!r}; there are {', '.join(FLAVOURS)}")
        for layer in without:
            if layer not in LAYERS:
                raise ValueError(f"unknown layer {layer!r}; these can be left out: {', '.join(LAYERS)}")
        self._options = SupervisorOptions(
            flavours=tuple(dict.fromkeys(flavours)),
            max_live=live,
            max_sessions=max_sessions,
            memory_bytes=default_memory_bytes() if memory_bytes is None else memory_bytes,
            lease_s=lease_s,
            replicas=max(1, live // 12) if replicas is None else replicas,
            without=tuple(without),
            allow_no_isolation=allow_no_isolation,
            cpp=CppOptions(command=cpp_command, compile_s=compile_s),
        )
        self._deterministic = deterministic
        self._window = 2 * live + 8
        self._room = asyncio.Semaphore(self._window + max_queued)
        self._queue: deque[_Call] = deque()
        self._sent: dict[int, _Call] = {}
        self._sessions: dict[int, LiveSession] = {}
        self._next_id = 0
        self._supervisor: Supervisor | None = None
        self._restart: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._latest_end = 0.0
        self._closed = False
        self.zygotes: dict[str, list[int]] = {name: [] for name in self._options.flavours}
        """Pids, the living and the replaced, oldest first."""
        self.restarts = 0
        """How often the supervisor was replaced."""
        self.evictions = 0
        """Sessions that gave way to others or whose lease ended."""

    # --- life --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        supervisor = self._new_supervisor()
        await supervisor.start()
        self._supervisor = supervisor
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._restart is not None:
            self._restart.cancel()
            with suppress(asyncio.CancelledError):
                await self._restart
        self._fail_all("the sandbox pool is closed", kind="closed", retryable=False)
        self._lose_sessions("closed")
        if self._supervisor is not None:
            await asyncio.shield(self._supervisor.close())

    def _new_supervisor(self) -> Supervisor:
        return Supervisor(self._options, self._take_frame, self._supervisor_ended)

    @property
    def isolation(self) -> str:
        return str(self._facts.get("isolation", ""))

    @property
    def tier(self) -> str:
        return str(self._facts.get("tier", ""))

    @property
    def supervisor_pid(self) -> int:
        """0 while it is being replaced."""
        return self._supervisor.pid if self._supervisor is not None and self._supervisor.alive else 0

    @property
    def flavours(self) -> tuple[str, ...]:
        return self._options.flavours

    @property
    def in_flight(self) -> int:
        """Calls that were accepted and have not ended."""
        return len(self._queue) + len(self._sent)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def _facts(self) -> dict[str, Any]:
        return self._supervisor.facts if self._supervisor is not None else {}

    # --- calls -------------------------------------------------------------------------------------------

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        """Runs one program. `deadline`: absolute `loop.time()`. Raises SandboxError for failures of ours."""
        encode = self._encoder(request)
        call = self._call(encode, self._longest_s(request), restartable=True)
        result: ExecResult = await self._perform(call, deadline)
        return result

    async def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, ExecResult | SandboxError]]:
        """See BatchSandbox. No task per call: futures whose callbacks fill one queue."""
        done: asyncio.Queue[tuple[int, asyncio.Future[ExecResult]]] = asyncio.Queue()
        calls: list[_Call] = []
        refused: dict[int, SandboxError] = {}
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    for index, request in enumerate(requests):
                        try:
                            longest_s = self._longest_s(request)
                            call = self._call(self._encoder(request), longest_s, restartable=True)
                            await self._submit(call)
                        except SandboxError as error:
                            refused[index] = error
                            continue
                        calls.append(call)
                        call.future.add_done_callback(
                            lambda future, index=index: done.put_nowait((index, future))  # type: ignore[misc]
                        )
            for refusal in refused.items():
                yield refusal
            async for outcome in self._outcomes(set(range(len(requests))) - set(refused), done, deadline):
                yield outcome
        finally:
            for call in calls:
                self._abandon(call)

    async def _outcomes(
        self,
        left: set[int],
        done: "asyncio.Queue[tuple[int, asyncio.Future[ExecResult]]]",
        deadline: float | None,
    ) -> AsyncIterator[tuple[int, ExecResult | SandboxError]]:
        try:
            while left:
                async with asyncio.timeout_at(deadline):
                    index, future = await done.get()
                left.discard(index)
                failure = future.exception()
                if isinstance(failure, ValueError):  # too long to be sent
                    yield index, SandboxError(str(failure), kind="too_large", retryable=False)
                elif failure is not None and not isinstance(failure, SandboxError):
                    raise failure
                else:
                    yield index, failure if failure is not None else future.result()
        except TimeoutError:
            pass
        for index in sorted(left):
            yield index, _late()

    def _encoder(self, request: ExecRequest) -> Callable[[int], bytes]:
        flavour = self._flavour(request.flavour, request.code)
        self._check_memory(request.limits)
        if self._deterministic and request.seed is None:
            request = replace(request, seed=seed_of(request))
        return lambda call_id: wire.encode_run(call_id, request, flavour)

    def _longest_s(self, request: ExecRequest) -> float:
        compile_s = self._options.cpp.compile_s if request.flavour == CPP else 0.0
        return compile_s + request.limits.wall_s

    def _flavour(self, name: str, code: str) -> int:
        if name == AUTO:
            from rocstar.sandbox.scan import flavour_for

            name = flavour_for(code, self._options.flavours)
        if name in self._options.flavours:
            return self._options.flavours.index(name)
        message = f"this pool has no flavour {name!r}, only {', '.join(self._options.flavours)}"
        raise SandboxError(message, kind="unknown_flavour", retryable=False)

    def _check_memory(self, limits: Limits) -> None:
        if limits.memory_bytes > self._options.memory_bytes:
            raise SandboxError(
                f"memory_bytes is {limits.memory_bytes}; this pool has {self._options.memory_bytes} for all "
                "programs together",
                kind="too_large",
                retryable=False,
            )

    def _call(self, encode: Callable[[int], bytes], wall_s: float, **fields: Any) -> _Call:
        return _Call(encode, asyncio.get_running_loop().create_future(), wall_s, **fields)

    async def _perform(self, call: _Call, deadline: float | None) -> Any:
        taken = False
        try:
            async with asyncio.timeout_at(deadline):
                await self._submit(call)
                outcome = await call.future
                taken = True
            return outcome
        except TimeoutError:
            raise _late() from None
        finally:
            if not taken:
                self._abandon(call)

    async def _submit(self, call: _Call) -> None:
        self._check_open()
        await self._room.acquire()
        if self._closed:  # meanwhile
            self._room.release()
        self._check_open()
        self._queue.append(call)
        self._restart_if_dead()
        self._send_more()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox pool is closed", kind="closed", retryable=False)

    def _send_more(self) -> None:
        if self._supervisor is None or not self._supervisor.alive:
            return
        frames: list[bytes] = []
        while self._queue and len(self._sent) < self._window:
            call = self._queue.popleft()
            if call.future.done():  # cancelled while it waited
                self._room.release()
                continue
            self._next_id += 1
            call.id = self._next_id
            call.attempts += 1
            try:
                frames.append(call.encode(call.id))
            except ValueError as error:
                self._room.release()
                call.future.set_exception(error)
                continue
            self._sent[call.id] = call
            self._expect(call)
        if frames:
            self._supervisor.write(b"".join(frames))

    def _abandon(self, call: _Call) -> None:
        """Nobody waits for it any more: what is under way is killed, and its place given back after that."""
        if not call.future.done():
            call.future.cancel()
        elif not call.future.cancelled() and call.future.exception() is None:
            self._drop_session(call.future.result())
        if call.id in self._sent and self._supervisor is not None and self._supervisor.alive:
            self._supervisor.write(wire.encode_id(wire.CANCEL, call.id))

    # --- sessions ----------------------------------------------------------------------------------------

    async def open_session(
        self,
        *,
        flavour: str = "stdlib",
        limits: Limits = DEFAULT_LIMITS,
        seed: int | None = None,
        deadline: float | None = None,
    ) -> LiveSession:
        """See SessionSandbox."""
        check_seed(seed)
        if flavour == CPP:
            message = "flavour 'cpp' has no sessions: a compiled program has no cells"
            raise SandboxError(message, kind="unknown_flavour", retryable=False)
        index = self._flavour(flavour, "")
        self._check_memory(limits)

        def encode(call_id: int) -> bytes:
            return wire.encode_open(call_id, limits, index, seed)

        call = self._call(encode, limits.wall_s, restartable=True, opens=limits)
        session: LiveSession = await self._perform(call, deadline)
        return session

    async def run_cell(
        self, session: LiveSession, code: str, wall_s: float, deadline: float | None
    ) -> ExecResult:
        """For LiveSession."""

        def encode(call_id: int) -> bytes:
            return wire.encode_cell(call_id, session.number, code, wall_s)

        call = self._call(encode, wall_s, restartable=False, session=session)
        result: ExecResult = await self._perform(call, deadline)
        return result

    async def branch(self, session: LiveSession) -> LiveSession:
        """For LiveSession."""

        def encode(call_id: int) -> bytes:
            return wire.encode_branch(call_id, session.number)

        call = self._call(encode, 30.0, restartable=False, opens=session.limits, session=session)
        branch: LiveSession = await self._perform(call, None)
        return branch

    def when_answered(self, session: LiveSession, then: Callable[[], None]) -> None:
        """For LiveSession: calls `then` once nothing of the session is under way. A cell whose caller was
        cancelled still has the interpreter until it was interrupted."""
        for call in self._sent.values():
            if call.session is session:
                call.then = then
                return
        then()

    async def close_session(self, session: LiveSession) -> None:
        """For LiveSession."""
        self._drop_session(session)

    def _drop_session(self, outcome: object) -> None:
        """Ends a session that was opened for a caller who is gone."""
        if isinstance(outcome, LiveSession) and self._sessions.pop(outcome.number, None) is not None:
            outcome.lose("closed")
            if self._supervisor is not None and self._supervisor.alive:
                self._supervisor.write(wire.encode_id(wire.CLOSE, outcome.number))

    def _lose_sessions(self, reason: str) -> None:
        for session in self._sessions.values():
            session.lose(reason)
        self._sessions.clear()

    # --- what the supervisor says ------------------------------------------------------------------------

    def _take_frame(self, frame: tuple[Any, ...]) -> None:
        if self._closed:
            return
        kind = frame[0]
        if kind == wire.RESULT:
            facts = self._facts
            result = ExecResult(
                status=wire.STATUSES[frame[2]],
                exit_code=frame[3],
                signal=frame[4],
                stdout=frame[5],
                stderr=frame[6],
                stdout_truncated=frame[7],
                stderr_truncated=frame[8],
                value=frame[9],
                wall_s=frame[10],
                cpu_s=frame[11],
                peak_memory_bytes=frame[12],
                isolation=facts["isolation"],
                tier=facts["tier"],
            )
            self._settle(frame[1], result)
        elif kind == wire.FAILED:
            call_id, why, text = wire.decode_failed(frame[1])
            self._settle(call_id, wire.failure(why, text))
        elif kind == wire.OPENED:
            number = wire.decode_id(frame[1])
            limits = self._sent[number].opens
            assert limits is not None
            self._sessions[number] = session = LiveSession(self, number, limits)
            self._settle(number, session)
        elif kind == wire.GONE:
            number, reason = wire.decode_gone(frame[1])
            self.evictions += reason in ("evicted", "expired")
            if gone := self._sessions.pop(number, None):
                gone.lose(reason)
        elif kind == wire.ZYGOTE:
            flavour, pid = wire.decode_zygote(frame[1])
            self.zygotes[self._options.flavours[flavour]].append(pid)

    def _settle(self, call_id: int, outcome: "ExecResult | SandboxError | LiveSession") -> None:
        call = self._sent.pop(call_id)
        self._end(call)
        if not call.future.done():
            if isinstance(outcome, SandboxError):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(outcome)
        else:
            self._drop_session(outcome)
        self._send_more()

    def _end(self, call: _Call) -> None:
        self._room.release()
        if call.then is not None:
            call.then()

    def _fail_all(self, message: str, *, kind: str, retryable: bool) -> None:
        calls = [*self._sent.values(), *self._queue]
        self._sent.clear()
        self._queue.clear()
        for call in calls:
            self._fail(call, SandboxError(message, kind=kind, retryable=retryable))

    def _fail(self, call: _Call, error: SandboxError) -> None:
        self._end(call)
        if not call.future.done():
            call.future.set_exception(error)
            call.future.exception()  # whoever waits still gets it; nobody need wait

    # --- its death ---------------------------------------------------------------------------------------

    def _supervisor_ended(self) -> None:
        self._lose_sessions("supervisor_died")
        lost = [self._sent.pop(call_id) for call_id in sorted(self._sent)]
        for call in reversed(lost):
            if not call.restartable:
                message = "the sandbox supervisor died, and the session with it"
                self._fail(call, SessionLost(message, reason="supervisor_died"))
            elif call.attempts >= MAX_ATTEMPTS:
                message = f"the sandbox supervisor died {MAX_ATTEMPTS} times under this call"
                self._fail(call, SandboxError(message, kind="supervisor_died", retryable=True))
            elif call.future.done():
                self._room.release()
            else:
                self._queue.appendleft(call)
        self._restart_if_dead()

    def _restart_if_dead(self) -> None:
        dead = self._supervisor is not None and not self._supervisor.alive
        if dead and not self._closed and self._restart is None:
            self.restarts += 1
            self._restart = asyncio.get_running_loop().create_task(self._start_again())

    async def _start_again(self) -> None:
        """The dead one stays in its place until another is ready: a later call then tries again."""
        assert self._supervisor is not None
        try:
            await self._supervisor.close()
            for attempt in range(MAX_ATTEMPTS):
                supervisor = self._new_supervisor()
                try:
                    await supervisor.start()
                except (SandboxError, OSError) as error:
                    failure = _start_failure(error)
                    if failure.retryable and attempt + 1 < MAX_ATTEMPTS:
                        continue
                    self._fail_all(str(failure), kind=failure.kind, retryable=failure.retryable)
                    return
                self._supervisor = supervisor
                self._latest_end = 0.0
                if supervisor.alive:
                    self._send_more()
                    return
            message = "the sandbox supervisor died each time it was started"
            self._fail_all(message, kind="supervisor_died", retryable=True)
        finally:
            self._restart = None

    def _expect(self, call: _Call) -> None:
        # At worst the calls in flight run one after the other.
        now = asyncio.get_running_loop().time()
        self._latest_end = max(self._latest_end, now) + call.wall_s
        if self._watchdog is None:
            self._watchdog = asyncio.get_running_loop().call_later(HANG_GRACE_S, self._look_for_hang)

    def _look_for_hang(self) -> None:
        self._watchdog = None
        loop = asyncio.get_running_loop()
        if not self._sent or self._supervisor is None:
            self._latest_end = 0.0
            return
        if loop.time() > HANG_GRACE_S + self._latest_end and self._supervisor.alive:
            self._supervisor.kill()
        else:
            self._watchdog = loop.call_later(HANG_GRACE_S, self._look_for_hang)


def _late() -> SandboxError:
    return SandboxError("the deadline passed before the program ended", kind="deadline", retryable=True)


def _start_failure(error: SandboxError | OSError) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    return SandboxError(f"cannot start the sandbox supervisor: {error}", kind="zygote_start", retryable=True)
