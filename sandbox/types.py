"""What crosses the sandbox's door: a request, a result, and the one exception.

A program that ends in any way at all gives an `ExecResult`; its `status` says how it ended.
`SandboxError` is our failure, never the program's: no result exists, so none can be scored.
"""

import math
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rocstar.sandbox import files as program_files

MAX_TEXT_BYTES = 16 << 20
"""Largest code or stdin in one request: a frame must stay far below the zygote's own memory."""

MAX_WEIGHT = 1000
"""Of an owner, against the others'."""

MAX_OUTPUT_BYTES = 64 << 20
"""Largest `output_bytes`: what one call may make the zygote hold per stream."""


class Status(StrEnum):
    """How a program ended.

    ok: exit code 0. error: any other exit code. signaled: killed by a signal that is none of the below.
    timeout: over `wall_s` or `cpu_s`. memory_limit: an uncaught MemoryError. output_limit: a stream grew
    past 4 times `output_bytes`, however the program ended. denied: killed by the system call filter (SIGSYS).
    """

    OK = "ok"
    ERROR = "error"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    DENIED = "denied"


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; give a number")
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} is {value}; it must lie in [{low}, {high}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one program may use.

    Args:
        wall_s: wall clock from the start of the child, kept by its parent.
        cpu_s: RLIMIT_CPU, whole seconds.
        memory_bytes: address space above the zygote's own.
        output_bytes: kept per stream; more is cut and marked, and 4 times as much ends the program with
            output_limit.
        files: how many files and directories may exist in its scratch directory at a time.
        file_bytes: how large each may become.
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
                raise TypeError(f"{name} is {value!r}; give a whole number")
            _check_number(name, value, low, high)


LIMIT_BOUNDS: Mapping[str, tuple[Any, Any]] = {
    "wall_s": (0.001, 86_400.0),
    "cpu_s": (1, 86_400),
    "memory_bytes": (1 << 20, 1 << 46),
    "output_bytes": (0, MAX_OUTPUT_BYTES),
    "file_bytes": (0, 1 << 46),
    "files": (0, 65_536),
}
"""What is possible at all. A service may allow less."""


DEFAULT_LIMITS = Limits()


def check_seed(seed: int | None) -> None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed is {seed!r}; give a whole number or None")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise ValueError(f"seed is {seed}; it must lie in [0, 2**64)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One program. `seed` fixes the random modules' state; None draws fresh entropy for every call.

    flavour: "auto" chooses among those at hand by what the code imports (see scan.py). files: name to content
    of what the program finds in its directory; they and their directories count beyond `limits.files`, and
    `limits.file_bytes` is at least the largest. fetch: names of files that the result is to have. displays:
    whether figures, and what `display` shows, are wanted. owner: whose call it is: owners share a pool's
    places fairly, however many calls each has. Without one a call, or a batch of them, is by itself. weight:
    of the owner against others', where the pool was told none.
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
            check_seed(self.seed)
        program_files.check(self.files)
        if not isinstance(self.weight, int) or not 1 <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"weight is {self.weight!r}; give a whole number from 1 to {MAX_WEIGHT}")
        if self.fetch != ():
            program_files.check_fetch(self.fetch)
        _check_text("code", self.code)
        if self.stdin != "":
            _check_text("stdin", self.stdin)
        if not isinstance(self.limits, Limits):
            raise TypeError(f"limits is {_kind(self.limits)}; give a Limits, for example Limits(wall_s=2.0)")
        if not isinstance(self.flavour, str):
            raise TypeError(f"flavour is {_kind(self.flavour)}; give a str, for example 'auto'")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} is {_kind(text)}; give a str")
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"{name} has {len(text)} characters; at most {MAX_TEXT_BYTES} bytes are sent")


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


MIMES = ("image/png", "image/jpeg", "image/svg+xml", "text/html", "text/markdown", "text/latex")
"""What a program may display; anything else is left out."""


@dataclass(frozen=True, slots=True)
class Display:
    """A picture or a page that a program showed. `mime`: one of MIMES. The content is the program's word."""

    mime: str
    data: bytes


OnOutput = Callable[[str, str], None]
"""Told of "stdout" or "stderr" and a piece of text, as it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a program ended, what it wrote and what it used.

    exit_code is set iff the program exited by itself, signal iff a signal ended it: exactly one is not None.

    Args:
        value: repr of a trailing expression that is not None, as in IPython.
        peak_memory_bytes: largest resident set above the zygote's own.
        isolation: the layers that held this program, joined by "+".
        tier: what they add up to ("B", "A", or "none", which only a pool with `allow_no_isolation` gives; see
            docs/reference/sandbox.md).
        files: those that were asked for (`fetch`), as they were when the program had ended. One that is not
            there, is no regular file or makes them more than 64 MiB is left out.
        displays: what it showed, in order, if that was asked for; at most 32.
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
        # A program may still end well before the kill arrives, and a cell may swallow its interrupt.
        clean = self.exit_code == 0 and self.status not in (Status.OUTPUT_LIMIT, Status.TIMEOUT)
        if (self.status is Status.OK) != clean:
            raise ValueError(f"status {self.status} contradicts exit_code={self.exit_code}")

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values, with the field names above; bytes are base64."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found["files"] = {name: b64encode(content).decode() for name, content in self.files.items()}
        found["displays"] = [
            {"mime": one.mime, "data": b64encode(one.data).decode()} for one in self.displays
        ]
        return found

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "ExecResult":
        """The inverse of `to_json`."""
        files = {name: b64decode(text) for name, text in fields.get("files", {}).items()}
        displays = tuple(Display(one["mime"], b64decode(one["data"])) for one in fields.get("displays", ()))
        return cls(**{**fields, "status": Status(fields["status"]), "files": files, "displays": displays})


class SandboxError(Exception):
    """The sandbox itself failed; nothing is known about the program.

    kind: a short stable word for counting (`deadline`, `zygote_died`, `zygote_start`, `missing_import`,
    `no_isolation`, `no_scratch`, `node_memory`, `node_scratch`, `unknown_flavour`, `too_large`, `closed`,
    `child_start`, `full`, `session_lost`, `supervisor_died`, `fabric`). retryable: the same call may
    succeed later.
    """

    def __init__(self, message: str, *, kind: str, retryable: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable


class SessionLost(SandboxError):
    """The session's interpreter is gone and its state with it. `reason` says why: `evicted` (least recently
    used, when room was needed), `expired` (its lease ended), `died` (the last cell exited, crashed or was
    killed), `supervisor_died`, `closed`, `unknown`. `ending`: how its process ended, where it died: by which
    exit code or signal, how long after its last cell began and of how much time, and what the supervisor did
    to it; the message has it as well. The caller decides whether to replay the cells."""

    def __init__(self, message: str, *, reason: str, ending: str = "") -> None:
        super().__init__(message, kind="session_lost", retryable=False)
        self.reason = reason
        self.ending = ending


class Sandbox(Protocol):
    """Runs programs. `deadline` is an absolute `loop.time()`; past it the program is killed and a
    `SandboxError` of kind `deadline` raised."""

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult: ...


class BatchSandbox(Sandbox, Protocol):
    """A sandbox that also takes many programs at once. Calls are independent: a failure of ours for one of
    them is yielded as its `SandboxError` and the others go on."""

    def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, "ExecResult | SandboxError"]]:
        """Yields (index into `requests`, outcome) as programs finish, each index exactly once. Closing the
        iterator kills what still runs."""
        ...


class Session(Protocol):
    """One live interpreter: cells run one after the other and share its state, as in a notebook.

    Between its cells there is no isolation. Every method raises `SessionLost` once the interpreter is gone.
    """

    @property
    def id(self) -> str: ...

    @property
    def lost(self) -> str | None:
        """Why it is gone; None while it lives."""
        ...

    @property
    def ending(self) -> str:
        """How its process ended, in words; empty while it lives, or if that is not known."""
        ...

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
        """Runs one cell. `wall_s` replaces the session's own limit for this cell. `files` are written before
        it runs, within the limits that the session was opened with; `fetch` and `displays` are as in an
        ExecRequest. `on_output` is told what the cell writes as it does, at most `output_bytes` of each
        stream. An uncaught exception is an `error` and
        leaves the session alive, and so does a `timeout` if the cell stops when it is interrupted
        (KeyboardInterrupt). A cell that exits, crashes or is killed still has a result; the session is then
        lost."""
        ...

    async def branch(self) -> "Session":
        """A second session that goes on from the same state, by fork. Both live on independently."""
        ...

    async def close(self) -> None: ...


class SessionSandbox(BatchSandbox, Protocol):
    """A sandbox that also holds sessions."""

    async def open_session(
        self,
        *,
        flavour: str = "auto",
        limits: Limits = DEFAULT_LIMITS,
        seed: int | None = None,
        owner: str = "",
    ) -> Session:
        """Starts an interpreter. `limits.memory_bytes` holds for its life, `wall_s` for each cell. `owner` is
        as that of an ExecRequest."""
        ...
