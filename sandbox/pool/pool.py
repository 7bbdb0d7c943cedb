"""The sandbox of one node: a supervisor process with its zygotes, bounded, restarted when it dies.

    run / run_batch          session.run / session.branch
          |                            |
          v                            v
        Calls  <----------------  OpenSessions      calls.py, session.py
          |                            ^
          v                            |
 SupervisorRestarter --> Supervisor --> frames      supervisor_restart.py, process.py

Who waits: a caller for room, then for its future (calls.py); nobody for the supervisor but `async with`.
"""

import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rocstar.sandbox import _native
from rocstar.sandbox.child.bash import BASH
from rocstar.sandbox.child.cpp import CPP, DEFAULT_COMMAND, DEFAULT_COMPILE_S, CppOptions
from rocstar.sandbox.child.flavours import FLAVOURS, Flavour
from rocstar.sandbox.child.user_flavours import NO_FLAVOURS
from rocstar.sandbox.pool import wire
from rocstar.sandbox.pool.batch import perform_all
from rocstar.sandbox.pool.call_output import CallOutput
from rocstar.sandbox.pool.calls import Call, Calls
from rocstar.sandbox.pool.process import SupervisorOptions
from rocstar.sandbox.pool.session import LiveSession, OpenSessions
from rocstar.sandbox.pool.supervisor_restart import SupervisorRestarter
from rocstar.sandbox.types import (
    DEFAULT_LIMITS,
    ExecRequest,
    ExecResult,
    Limits,
    OnOutput,
    SandboxError,
    check_seed,
)

LAYERS = ("seccomp", "landlock", "uid", "notify", "scratch", "namespaces", "cgroup")
"""Layers that can be left out, for tests of what the others hold."""

AUTO = "auto"
"""The flavour that is chosen by what a program imports."""


MOST_LIVE = 1 << 16
"""Programs at a time: more is a slip of the fingers, for which warm interpreters would fill the memory."""


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


NO_SESSIONS = {
    CPP: "a compiled program has no cells",
    BASH: "what a program has started ends with it; keep state in files, by `files` and `fetch`",
}


def seed_of(request: ExecRequest) -> int:
    """64 bits that follow from the program and its input."""
    text = f"{len(request.code)}:{request.code}{request.stdin}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def check_bash(code: str) -> None:
    """A program is one argument of bash. Raises SandboxError for what none can be."""
    size, most = len(code.encode("utf-8", "surrogatepass")), _native.MOST_SHELL_BYTES
    if size > most:
        fix = "give the rest in `files`, and read it by `. ./NAME`"
        message = f"a bash program has {size} bytes; at most {most} are taken: {fix}"
        raise SandboxError(message, kind="too_large", retryable=False)


@lru_cache(maxsize=4096)
def lane_of(owner: str) -> int:
    """All calls of an owner are in one lane. 0 for nobody."""
    if not owner:
        return 0
    return 1 << 63 | int.from_bytes(hashlib.blake2b(owner.encode(), digest_size=8).digest(), "little") >> 1


def request_of(code: object) -> ExecRequest:
    """A request as it is, of a str one. Raises TypeError that says what to pass."""
    if isinstance(code, ExecRequest):
        return code
    if not isinstance(code, str):
        raise TypeError(
            f"a program is of type {type(code).__name__}; give its code as a str, or an ExecRequest"
        )
    return ExecRequest(code=code)


class SandboxPool:
    """Runs programs in confined children of warm zygotes. Use it as an async context manager.

    Args:
        flavours: the zygotes to start (see flavours.py).
        max_live: children at work at a time.
        max_queued: calls that wait beyond those; further callers wait in `run`.
        memory_bytes: what the calls under way may take together, by their limits, and idle sessions hold.
        max_sessions, lease_s: how many interpreters live between cells, and how long one may be idle; the
            least recently used gives way.
        replicas: zygotes per flavour.
        deterministic: a program without a seed gets one that follows from its text, so that the same call has
            the same random numbers each time.
        allow_no_isolation: start even below tier A; every result then says so.
        without: layers to leave out, for tests.
        weights: of owners, 1 for those left out: who has twice the weight gets twice the places while both
            have calls that wait.
        cpp_command, compile_s: how the C++ flavour compiles, and how long it may (cpp.py).
        declared: flavours of a user's own (`read_flavours`), of which `flavours` names those to start.
        nice: how far programs stand back from this process and the supervisor, as in nice(1), 0 to 19.
        start_warm: whether entering the pool waits until all flavours are warm. If not, a call waits for its
            own flavour, and one that cannot start fails only the calls that need it.
        on_warm: told of a flavour whenever an interpreter of it is warm, while the pool starts and later.

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
        weights: Mapping[str, int] | None = None,
        cpp_command: str = DEFAULT_COMMAND,
        compile_s: float = DEFAULT_COMPILE_S,
        nice: int = 0,
        declared: Mapping[str, Flavour] = NO_FLAVOURS,
        start_warm: bool = True,
        on_warm: Callable[[str], None] = lambda flavour: None,
    ) -> None:
        live = default_max_live() if max_live is None else max_live
        if live > MOST_LIVE:
            raise ValueError(f"max_live={live}: more than {MOST_LIVE} programs at a time; give fewer")
        if live < 1 or max_queued < 0 or max_sessions < 0:
            raise ValueError(
                f"max_live={live}, max_queued={max_queued}, max_sessions={max_sessions}: at least 1, 0 and 0 "
                "are needed"
            )
        for name in flavours:
            if name not in FLAVOURS and name not in declared:
                there = ", ".join((*FLAVOURS, *declared))
                raise ValueError(f"unknown flavour {name!r}; there are {there}")
        for layer in without:
            if layer not in LAYERS:
                raise ValueError(f"unknown layer {layer!r}; these can be left out: {', '.join(LAYERS)}")
        options = SupervisorOptions(
            flavours=tuple(dict.fromkeys(flavours)),
            max_live=live,
            max_sessions=max_sessions,
            memory_bytes=default_memory_bytes() if memory_bytes is None else memory_bytes,
            lease_s=lease_s,
            replicas=max(1, live // 12) if replicas is None else replicas,
            without=tuple(without),
            allow_no_isolation=allow_no_isolation,
            nice=nice,
            warm_before=not start_warm,
            declared=tuple(declared[name] for name in dict.fromkeys(flavours) if name in declared),
            cpp=CppOptions(command=cpp_command, compile_s=compile_s),
        )
        self._numbers = {name: number for number, name in enumerate(options.flavours)}
        self._memory_bytes = options.memory_bytes
        self._deterministic = deterministic
        self._weights = {lane_of(owner): weight for owner, weight in (weights or {}).items()}
        self._on_warm = on_warm
        self._restarter = SupervisorRestarter(
            options, on_frame=self._take_frame, on_end=self._supervisor_ended
        )
        self._calls = Calls(
            self._restarter, window=2 * live + 8, max_queued=max_queued, unclaimed=self._unclaimed
        )
        self._sessions = OpenSessions(self._calls, self._restarter)
        self._started = self._closed = False
        self._lanes = 0
        self.zygotes: dict[str, list[int]] = {name: [] for name in options.flavours}
        """Pids, the living and the replaced, oldest first."""

    async def __aenter__(self) -> Self:
        await self._restarter.start(self._calls)
        self._started = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._calls.close()
        self._sessions.lose_all("closed")
        await self._restarter.close()

    @property
    def isolation(self) -> str:
        return str(self._facts.get("isolation", ""))

    @property
    def tier(self) -> str:
        return str(self._facts.get("tier", ""))

    @property
    def built(self) -> str:
        """Protections of the supervisor's build, joined by "+"."""
        return str(self._facts.get("built", ""))

    @property
    def supervisor_pid(self) -> int:
        """0 while it is being replaced."""
        return self._restarter.pid

    @property
    def restarts(self) -> int:
        """How often the supervisor was replaced."""
        return self._restarter.restarts

    @property
    def flavours(self) -> tuple[str, ...]:
        return self._restarter.options.flavours

    @property
    def in_flight(self) -> int:
        """Calls that were accepted and have not ended."""
        return len(self._calls)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def evictions(self) -> int:
        """Sessions that gave way to others or whose lease ended."""
        return self._sessions.evictions

    @property
    def _facts(self) -> dict[str, Any]:
        return self._restarter.facts

    # --- calls -------------------------------------------------------------------------------------------

    async def run(
        self,
        request: ExecRequest | str,
        *,
        deadline: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Runs one program; a str is `ExecRequest(code=...)`. `deadline`: absolute `loop.time()`. `on_output`
        is told what it writes as it does; such a call is not started again when the supervisor dies. Raises
        SandboxError for failures of ours."""
        call = self._call_of(request, self._lane(), on_output)
        result: ExecResult = await self._calls.perform(call, deadline)
        return result

    def run_batch(
        self, requests: Sequence[ExecRequest | str], *, deadline: float | None = None
    ) -> AsyncGenerator[tuple[int, ExecResult | SandboxError], None]:
        """See BatchSandbox; each request as in `run`. A mistake in a list is raised before anything runs; of
        another sequence each is looked at, and made, when its turn comes."""
        if isinstance(requests, str):
            raise TypeError("run_batch takes a list of programs; for a single one use run(code)")
        if isinstance(requests, list | tuple):
            requests = list(map(request_of, requests))
        call_of = partial(self._call_of, lane=self._lane())
        return perform_all(self._calls, requests, call_of, deadline)

    async def open_session(
        self,
        *,
        flavour: str = AUTO,
        limits: Limits = DEFAULT_LIMITS,
        seed: int | None = None,
        owner: str = "",
        deadline: float | None = None,
    ) -> LiveSession:
        """See SessionSandbox."""
        check_seed(seed)
        if flavour in NO_SESSIONS:
            message = f"flavour {flavour!r} has no sessions: {NO_SESSIONS[flavour]}"
            raise SandboxError(message, kind="unknown_flavour", retryable=False)
        index = self._numbers[self._flavour(flavour, "")]
        self._check_memory(limits)
        lane = lane_of(owner) or self._lane()
        weight = self._weights.get(lane, 1)

        def encode(call_id: int) -> list[bytes]:
            return [wire.encode_open(call_id, limits, index, seed, lane, weight)]

        call = Call(encode, limits.wall_s, restartable=True, opens=limits, lane=lane, weight=weight)
        session: LiveSession = await self._calls.perform(call, deadline)
        return session

    def _lane(self) -> int:
        """A call or a batch by itself, which shares the places with all others."""
        self._lanes += 1
        return self._lanes

    def _call_of(self, request: ExecRequest | str, lane: int, on_output: OnOutput | None = None) -> Call:
        request = request_of(request)
        flavour = self._flavour(request.flavour, request.code)
        limits = request.limits
        self._check_memory(wire.with_files(limits, request.files) if request.files else limits)
        if request.files or request.fetch or request.displays:
            self._check_files(flavour)
        if flavour == BASH:
            check_bash(request.code)
        if self._deterministic and request.seed is None:
            request = replace(request, seed=seed_of(request))
        if request.owner:
            lane = lane_of(request.owner)
        weight = self._weights.get(lane, request.weight)
        index = self._numbers[flavour]
        compile_s = self._restarter.options.cpp.compile_s if flavour == CPP else 0.0
        follows = on_output is not None
        return Call(
            lambda call_id: wire.encode_run(call_id, request, index, lane, weight, follows=follows),
            compile_s + limits.wall_s,
            restartable=not follows,
            lane=lane,
            weight=weight,
            output=CallOutput(on_output),
        )

    def _flavour(self, name: str, code: str) -> str:
        if not self._started:
            message = "the sandbox pool has not been started; use `async with SandboxPool() as pool`"
            raise SandboxError(message, kind="closed", retryable=False)
        if name == AUTO:
            from rocstar.sandbox.child.import_scan import select_flavour

            name = select_flavour(code, self.flavours)
        if name in self._numbers:
            return name
        message = f"this pool has no flavour {name!r}, only {', '.join(self.flavours)}"
        raise SandboxError(message, kind="unknown_flavour", retryable=False)

    def _check_memory(self, limits: Limits) -> None:
        if limits.memory_bytes > self._memory_bytes:
            raise SandboxError(
                f"memory_bytes is {limits.memory_bytes}; this pool has {self._memory_bytes} for all programs "
                "together",
                kind="too_large",
                retryable=False,
            )

    def _check_files(self, flavour: str) -> None:
        if flavour == CPP:
            message = "flavour 'cpp' takes no files: a compiled program is alone in its directory"
            raise SandboxError(message, kind="unknown_flavour", retryable=False)
        if not self._facts["files"]:
            message = "files need scratch directories, which this machine's isolation lacks (Landlock)"
            raise SandboxError(message, kind="no_scratch", retryable=False)

    def _unclaimed(self, outcome: object) -> None:
        if isinstance(outcome, LiveSession):
            self._sessions.close(outcome)

    # --- what the supervisor says ------------------------------------------------------------------------

    def _take_frame(self, frame: tuple[Any, ...]) -> None:
        if self._closed:
            return
        kind = frame[0]
        if kind == wire.RESULT:
            output, facts = self._calls.sent[frame[1]].output, self._restarter.facts
            self._calls.settle(frame[1], output.build_result(frame, facts["isolation"], facts["tier"]))
        elif kind == wire.FAILED:
            call_id, why, text = wire.decode_failed(frame[1])
            self._calls.settle(call_id, wire.failure(why, text))
        elif kind == wire.OPENED:
            number = wire.decode_id(frame[1])
            call = self._calls.sent[number]
            assert call.opens is not None
            self._calls.settle(number, self._sessions.opened(number, call.opens, call.lane, call.weight))
        elif kind == wire.OUTPUT:
            self._calls.deliver_output(*wire.decode_output(frame[1]))
        elif kind == wire.FILE:
            call_id, name, data = wire.decode_file(frame[1])
            self._calls.sent[call_id].output.add_chunk(name, data)
        elif kind == wire.GONE:
            self._sessions.gone(*wire.decode_gone(frame[1]))
        elif kind == wire.ZYGOTE:
            flavour, pid = wire.decode_zygote(frame[1])
            self.zygotes[self.flavours[flavour]].append(pid)
            self._on_warm(self.flavours[flavour])

    def _supervisor_ended(self) -> None:
        self._sessions.lose_all("supervisor_died")
        self._calls.requeue_lost()
