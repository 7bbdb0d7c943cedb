"""The sandbox of one node: a supervisor process with its zygotes, which is restarted when it dies.

    run / run_batch          session.run / session.branch
          |                            |
          v                            v
        Calls  <----------------  OpenSessions      calls.py, session.py
          |                            ^
          v                            |
 SupervisorRestarter --> Supervisor --> frames      supervisor_restart.py, process.py

A caller waits for room, then for its outcome (calls.py). Only `async with` waits for the supervisor.
"""

import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
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
from rocstar.sandbox.types import DEFAULT_LIMITS, ExecRequest, ExecResult, Limits, OnOutput, SandboxError

LAYERS = ("seccomp", "landlock", "uid", "notify", "scratch", "namespaces", "cgroup")
"""Layers that can be disabled, to test the others."""

AUTO = "auto"
"""The name that selects a flavour by the program's imports."""

MOST_LIVE = 1 << 16
"""The maximum of `max_live`. A larger value is probably a typo and would exhaust memory."""


def default_max_live() -> int:
    """Return 1.5 children per core, which keeps the cores busy and hardly delays programs."""
    return max(2, len(os.sched_getaffinity(0)) * 3 // 2)


def default_memory_bytes() -> int:
    """Return three quarters of the memory of this machine or container."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            sizes.append(int(Path(limit).read_text()))
    return min(sizes) * 3 // 4


NO_SESSIONS = {
    CPP: "a compiled program has no cells",
    BASH: "a bash program's processes end with it; keep state in files, with `files` and `fetch`",
}


def check_bash(code: str) -> None:
    """Raise SandboxError if a program is too long for one argument of bash."""
    size, most = len(code.encode("utf-8", "surrogatepass")), _native.MOST_SHELL_BYTES
    if size > most:
        fix = "Pass the rest in `files` and source it with `. ./NAME`."
        message = f"the bash program has {size} bytes, more than {most}. {fix}"
        raise SandboxError(message, kind="too_large", retryable=False)


@lru_cache(maxsize=4096)
def lane_of(owner: str) -> int:
    """Return the lane of an owner's calls, or 0 without an owner."""
    if not owner:
        return 0
    return 1 << 63 | int.from_bytes(hashlib.blake2b(owner.encode(), digest_size=8).digest(), "little") >> 1


def request_of(code: object) -> ExecRequest:
    """Return a request; make one of a str. Raise TypeError for other types."""
    if isinstance(code, ExecRequest):
        return code
    if not isinstance(code, str):
        raise TypeError(
            f"a program cannot be of type {type(code).__name__}. Pass its code as a str, or an ExecRequest."
        )
    return ExecRequest(code=code)


class SandboxPool:
    """Runs programs in confined children of warm zygotes. Use it as an async context manager.

    Args:
        flavours: the flavours whose zygotes are started (see flavours.py).
        max_live: the maximum of running programs.
        max_queued: the maximum of calls that wait for a place; further callers wait in `run`.
        memory_bytes: the memory of running calls, by their limits, and of idle sessions together.
        max_sessions: the maximum of idle sessions; the least recently used is evicted.
        lease_s: seconds after which an idle session expires.
        replicas: zygotes per flavour.
        deterministic: a program without a seed gets one derived from its text and input, so that equal calls
            have equal random numbers.
        allow_no_isolation: start even below tier A; every result reports its tier.
        without: layers to disable, for tests.
        weights: weights of owners, default 1. An owner of weight 2 gets twice the places of one of weight 1
            while both have waiting calls.
        cpp_command: the compile command of the C++ flavour (cpp.py).
        compile_s: seconds that a compilation may take.
        declared: user flavours (`read_flavours`); `flavours` names those to start.
        nice: the nice value of programs, 0 to 19.
        start_warm: True if entering the pool waits until all flavours are warm. Otherwise a call waits for
            its flavour, and a flavour that cannot start fails only its own calls.
        on_warm: called with a flavour whenever an interpreter of it becomes warm.

    Invariants: every `run` ends in exactly one result, SandboxError or cancellation; if `run` is cancelled or
    its deadline passes, the child is killed; no process of the pool is left after the context ends.
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
            raise ValueError(f"max_live is {live}, more than {MOST_LIVE}. Pass fewer.")
        if live < 1 or max_queued < 0 or max_sessions < 0:
            raise ValueError(
                f"max_live={live}, max_queued={max_queued}, max_sessions={max_sessions}. Pass at least 1, 0 and 0."
            )
        for name in flavours:
            if name not in FLAVOURS and name not in declared:
                known = ", ".join((*FLAVOURS, *declared))
                raise ValueError(f"unknown flavour {name!r}. Choose from {known}.")
        for layer in without:
            if layer not in LAYERS:
                raise ValueError(f"unknown layer {layer!r}. Choose from {', '.join(LAYERS)}.")
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
        self._restarter = SupervisorRestarter(options, on_frame=self._take_frame, on_end=self._supervisor_ended)
        self._calls = Calls(self._restarter, window=2 * live + 8, max_queued=max_queued, unclaimed=self._unclaimed)
        self._sessions = OpenSessions(self._calls, self._restarter)
        self._started = self._closed = False
        self._lanes = 0
        self.zygotes: dict[str, list[int]] = {name: [] for name in options.flavours}
        """Pids of all zygotes so far, oldest first."""

    async def __aenter__(self) -> Self:
        await self._restarter.start(self._calls)
        self._started = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        self._calls.close()
        self._sessions.lose_all("closed")
        await self._restarter.close()

    @property
    def isolation(self) -> str:
        return str(self._restarter.facts.get("isolation", ""))

    @property
    def tier(self) -> str:
        return str(self._restarter.facts.get("tier", ""))

    @property
    def built(self) -> str:
        """The protections of the supervisor's build, joined by "+"."""
        return str(self._restarter.facts.get("built", ""))

    @property
    def supervisor_pid(self) -> int:
        """The supervisor's pid, or 0 during a restart."""
        return self._restarter.pid

    @property
    def restarts(self) -> int:
        """The number of restarts of the supervisor."""
        return self._restarter.restarts

    @property
    def flavours(self) -> tuple[str, ...]:
        return self._restarter.options.flavours

    @property
    def in_flight(self) -> int:
        """The number of accepted calls that have not ended."""
        return len(self._calls)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def evictions(self) -> int:
        """The number of sessions that were evicted or whose lease expired."""
        return self._sessions.evictions

    # --- calls -------------------------------------------------------------------------------------------

    async def run(
        self, request: ExecRequest | str, *, deadline: float | None = None, on_output: OnOutput | None = None
    ) -> ExecResult:
        """Run one program. Raise SandboxError if the sandbox fails.

        request: a str means `ExecRequest(code=...)`. deadline: absolute `loop.time()`. on_output: called with
            the output as it is written; such a call is not restarted when the supervisor dies.
        """
        call = self._call_of(request, self._lane(), on_output)
        result: ExecResult = await self._calls.perform(call, deadline)
        return result

    def run_batch(
        self, requests: Sequence[ExecRequest | str], *, deadline: float | None = None
    ) -> AsyncGenerator[tuple[int, ExecResult | SandboxError], None]:
        """See BatchSandbox; requests are as in `run`. An invalid element of a list or tuple raises before any
        program runs; other sequences are read and checked as their requests are submitted."""
        if isinstance(requests, str):
            raise TypeError("run_batch takes a list of programs. For a single one use run(code).")
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
        request = ExecRequest(code="", limits=limits, seed=seed)
        if flavour in NO_SESSIONS:
            message = f"flavour {flavour!r} has no sessions: {NO_SESSIONS[flavour]}"
            raise SandboxError(message, kind="unknown_flavour", retryable=False)
        index = self._numbers[self._flavour(flavour, "")]
        self._check_memory(limits)
        lane = lane_of(owner) or self._lane()
        weight = self._weights.get(lane, 1)
        call = Call(
            lambda call_id: wire.encode_run(call_id, request, index, lane, weight, kind=wire.OPEN),
            limits.wall_s,
            restartable=True,
            opens=limits,
            lane=lane,
            weight=weight,
        )
        session: LiveSession = await self._calls.perform(call, deadline)
        return session

    def _lane(self) -> int:
        """Return a new lane, for a call or a batch without owner."""
        self._lanes += 1
        return self._lanes

    def _call_of(self, request: ExecRequest | str, lane: int, on_output: OnOutput | None = None) -> Call:
        request = request_of(request)
        flavour = self._flavour(request.flavour, request.code)
        limits = request.limits
        self._check_memory(wire.with_files(limits, request.files) if request.files else limits)
        if request.files or request.fetch or request.displays:
            if flavour == CPP:
                message = "flavour 'cpp' does not support files"
                raise SandboxError(message, kind="unknown_flavour", retryable=False)
            if not self._restarter.facts["files"]:
                message = "files need scratch directories, which this machine does not support (Landlock)"
                raise SandboxError(message, kind="no_scratch", retryable=False)
        if flavour == BASH:
            check_bash(request.code)
        if self._deterministic and request.seed is None:
            text = f"{len(request.code)}:{request.code}{request.stdin}".encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(text, digest_size=8).digest()
            request = replace(request, seed=int.from_bytes(digest, "little"))
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
            message = "the sandbox pool is not started. Use `async with SandboxPool() as pool`."
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
                f"memory_bytes is {limits.memory_bytes}, more than the {self._memory_bytes} of this pool",
                kind="too_large",
                retryable=False,
            )

    def _unclaimed(self, outcome: object) -> None:
        if isinstance(outcome, LiveSession):
            self._sessions.close(outcome)

    # --- frames of the supervisor ------------------------------------------------------------------------

    def _take_frame(self, frame: tuple[Any, ...]) -> None:
        if self._closed:
            return
        kind = frame[0]
        if kind == wire.RESULT:
            output, facts = self._calls.sent[frame[1]].output, self._restarter.facts
            self._calls.settle(frame[1], output.build_result(frame, facts["isolation"], facts["tier"]))
        elif kind == wire.FAILED:
            call_id, code, text = wire.decode_coded(frame[1])
            self._calls.settle(call_id, wire.failure(wire.FAILURES[code], text.decode("utf-8", "replace")))
        elif kind == wire.OPENED:
            number = wire.decode_id(frame[1])
            call = self._calls.sent[number]
            assert call.opens is not None
            self._calls.settle(number, self._sessions.opened(number, call.opens, call.lane, call.weight))
        elif kind == wire.OUTPUT:
            call_id, code, data = wire.decode_coded(frame[1])
            self._calls.deliver_output(call_id, wire.STREAMS[code], data)
        elif kind == wire.FILE:
            call_id, name, data = wire.decode_file(frame[1])
            self._calls.sent[call_id].output.add_chunk(name, data)
        elif kind == wire.GONE:
            number, code, how = wire.decode_coded(frame[1])
            self._sessions.gone(number, wire.GONE_REASONS[code], how.decode("utf-8", "replace"))
        elif kind == wire.ZYGOTE:
            flavour, pid = wire.decode_zygote(frame[1])
            self.zygotes[self.flavours[flavour]].append(pid)
            self._on_warm(self.flavours[flavour])

    def _supervisor_ended(self) -> None:
        self._sessions.lose_all("supervisor_died")
        self._calls.requeue_lost()
