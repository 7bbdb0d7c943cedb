"""The sandbox's public types: request, result and exception.

Every program that ends has an `ExecResult`, whose `status` describes its end. `SandboxError` is a failure of
the sandbox, never of the program: there is no result, so it cannot be scored.
"""

import math
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rocstar.sandbox import files as program_files

MAX_TEXT_BYTES = 16 << 20
"""The maximum of code or stdin in one request: a frame must be much smaller than the zygote's memory."""

MAX_WEIGHT = 1000
"""The maximum weight of an owner."""

MAX_OUTPUT_BYTES = 64 << 20
"""The maximum of `output_bytes`, which the zygote buffers per stream."""


class Status(StrEnum):
    """The end of a program.

    ok: exit code 0. error: any other exit code. signaled: killed by a signal other than those below. timeout:
    over `wall_s` or `cpu_s`. memory_limit: an uncaught MemoryError. output_limit: a stream exceeded 4 times
    `output_bytes`, whatever the exit. denied: killed by the system call filter (SIGSYS).
    """

    OK = "ok"
    ERROR = "error"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The resource limits of one program.

    Args:
        wall_s: wall clock from the start of the child, enforced by its parent.
        cpu_s: RLIMIT_CPU, whole seconds.
        memory_bytes: address space beyond the zygote's.
        output_bytes: returned per stream; longer output is truncated and marked, and 4 times as much ends the
            program with output_limit.
        files: the maximum of files and directories in its scratch directory at a time.
        file_bytes: the maximum size of a file.
    """

    wall_s: float = 4.0
    cpu_s: int = 5
    memory_bytes: int = 1 << 30
    output_bytes: int = 1 << 20
    file_bytes: int = 4 << 20
    files: int = 64

    def __post_init__(self) -> None:
        for name, (low, high) in LIMIT_BOUNDS.items():
            value = getattr(self, name)
            if name != "wall_s" and not isinstance(value, int):
                raise TypeError(f"{name} is {value!r}. Pass a whole number.")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} is {value!r}. Pass a number.")
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"{name} is {value}. It must be in [{low}, {high}].")


LIMIT_BOUNDS: Mapping[str, tuple[Any, Any]] = {
    "wall_s": (0.001, 86_400.0),
    "cpu_s": (1, 86_400),
    "memory_bytes": (1 << 20, 1 << 46),
    "output_bytes": (0, MAX_OUTPUT_BYTES),
    "file_bytes": (0, 1 << 46),
    "files": (0, 65_536),
}
"""The range of each limit. A service may allow less."""

DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One program.

    Args:
        flavour: "auto" selects one by the code's imports (see import_scan.py).
        seed: sets the state of the random modules; None draws fresh entropy for every call.
        files: contents by name, written into the program's directory. They and their directories count in
            addition to `limits.files`, and `limits.file_bytes` is at least the largest.
        owner: owners share a pool's places fairly, whatever their number of calls. A call or a batch without
            owner counts as an owner.
        fetch: names of files to return in the result.
        displays: True to return figures and the values of `display`.
        weight: the owner's weight, if the pool has none for it.
    """

    code: str
    stdin: str = ""
    limits: Limits = field(default=DEFAULT_LIMITS)
    flavour: str = "auto"
    seed: int | None = None
    files: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    owner: str = ""
    fetch: Sequence[str] = ()
    displays: bool = False
    weight: int = 1

    def __post_init__(self) -> None:
        if self.seed is not None:
            if isinstance(self.seed, bool) or not isinstance(self.seed, int):
                raise TypeError(f"seed is {self.seed!r}. Pass a whole number or None.")
            if not 0 <= self.seed < 1 << 64:
                raise ValueError(f"seed is {self.seed}. It must be in [0, 2**64).")
        program_files.check(self.files)
        if not isinstance(self.weight, int) or not 1 <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"weight is {self.weight!r}. Pass a whole number from 1 to {MAX_WEIGHT}.")
        if self.fetch != ():
            program_files.check_fetch(self.fetch)
        _check_text("code", self.code)
        if self.stdin != "":
            _check_text("stdin", self.stdin)
        if not isinstance(self.limits, Limits):
            raise TypeError(f"limits is {_kind(self.limits)}. Pass a Limits, for example Limits(wall_s=2.0).")
        if not isinstance(self.flavour, str):
            raise TypeError(f"flavour is {_kind(self.flavour)}. Pass a str, for example 'auto'.")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} is {_kind(text)}. Pass a str.")
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"{name} has {len(text)} characters, more than {MAX_TEXT_BYTES} bytes")


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


MIMES = ("image/png", "image/jpeg", "image/svg+xml", "text/html", "text/markdown", "text/latex")
"""The types of displays; others are omitted."""


@dataclass(frozen=True, slots=True)
class Display:
    """A picture or a page that a program displayed. mime: one of MIMES. The content is not verified."""

    mime: str
    data: bytes


OnOutput = Callable[[str, str], None]
"""Called with "stdout" or "stderr" and a piece of text, as it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The end, output and resource use of a program.

    exit_code is set iff the program exited by itself, signal iff a signal ended it: exactly one is not None.

    Args:
        value: the repr of a trailing expression that is not None, as in IPython.
        peak_memory_bytes: the largest resident set beyond the zygote's.
        isolation: the active isolation layers, joined by "+".
        tier: their tier ("B", "A", or "none", only with `allow_no_isolation`; see docs/reference/sandbox.md).
        files: the fetched files, as they were when the program ended, without missing and irregular files and
            those beyond 64 MiB in total.
        displays: the displays in order, if requested; at most 32.
    """

    status: Status
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    value: str | None
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int
    isolation: str
    tier: str = "none"
    files: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    displays: tuple[Display, ...] = ()

    def __post_init__(self) -> None:
        if (self.exit_code is None) == (self.signal is None):
            raise ValueError(f"exit_code={self.exit_code} and signal={self.signal}: exactly one must be set")
        # A program may exit with 0 before the kill arrives, and a cell may swallow its interrupt.
        clean = self.exit_code == 0 and self.status not in (Status.OUTPUT_LIMIT, Status.TIMEOUT)
        if (self.status is Status.OK) != clean:
            raise ValueError(f"status {self.status} contradicts exit_code={self.exit_code}")

    def to_json(self) -> dict[str, Any]:
        """Return a dict of JSON values by field name; bytes are base64."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["files"] = {name: b64encode(content).decode() for name, content in self.files.items()}
        fields["displays"] = [{"mime": one.mime, "data": b64encode(one.data).decode()} for one in self.displays]
        return fields


class SandboxError(Exception):
    """A failure of the sandbox; the program's end is unknown.

    kind: a stable identifier (`deadline`, `zygote_died`, `zygote_start`, `missing_import`,
    `no_isolation`, `no_scratch`, `node_memory`, `node_scratch`, `unknown_flavour`, `too_large`, `closed`,
    `child_start`, `full`, `session_lost`, `supervisor_died`, `fabric`). retryable: True if the same call may
    succeed later.
    """

    def __init__(self, message: str, *, kind: str, retryable: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable


def deadline_error() -> SandboxError:
    return SandboxError("the deadline passed before the program ended", kind="deadline", retryable=True)


class SessionLost(SandboxError):
    """The session's interpreter and its state are gone. The caller may replay the cells.

    reason: `evicted` (least recently used when memory was needed), `expired` (its lease ended), `died` (the
    last cell exited, crashed or was killed), `supervisor_died`, `closed`, `unknown`. ending: if it died, the
    exit code or signal of its process, the time since its last cell began, that cell's limit, and the
    supervisor's actions; the message contains it.
    """

    def __init__(self, message: str, *, reason: str, ending: str = "") -> None:
        super().__init__(message, kind="session_lost", retryable=False)
        self.reason = reason
        self.ending = ending


class Sandbox(Protocol):
    """Runs programs. deadline: an absolute `loop.time()`, after which the program is killed and a
    SandboxError of kind `deadline` raised."""

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult: ...


class BatchSandbox(Sandbox, Protocol):
    """A sandbox that also runs batches. Calls are independent: a failure of the sandbox is yielded as the
    call's SandboxError, and the other calls continue."""

    def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, "ExecResult | SandboxError"]]:
        """Yield (index into `requests`, outcome) as programs finish, each index exactly once. Closing the
        iterator kills running programs."""


class Session(Protocol):
    """A live interpreter whose cells run one after the other and share its state, as in a notebook.

    Cells of a session are not isolated from each other. Every method raises SessionLost if the interpreter is
    gone.
    """

    @property
    def id(self) -> str: ...

    @property
    def lost(self) -> str | None:
        """The reason for which the interpreter is gone, or None."""

    @property
    def ending(self) -> str:
        """A description of how its process ended; "" while it runs or if unknown."""

    async def run(
        self,
        code: str,
        *,
        wall_s: float | None = None,
        deadline: float | None = None,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        displays: bool = False,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run one cell.

        wall_s: replaces the session's limit for this cell. files: written before the cell runs, within the
            session's limits. fetch, displays: as in ExecRequest. on_output: called with the output as it is
            written, at most `output_bytes` of each stream.

        The session survives an uncaught exception, and a timeout if the cell stops on KeyboardInterrupt. A
        cell that exits, crashes or is killed has a result, and the session is then lost.
        """

    async def branch(self) -> "Session":
        """Fork a second session that continues from the same state, independently."""

    async def close(self) -> None: ...


class SessionSandbox(BatchSandbox, Protocol):
    """A sandbox that also has sessions."""

    async def open_session(
        self, *, flavour: str = "auto", limits: Limits = DEFAULT_LIMITS, seed: int | None = None, owner: str = ""
    ) -> Session:
        """Start an interpreter. `limits.memory_bytes` is for its whole life, `wall_s` for each cell. owner:
        as in ExecRequest."""
