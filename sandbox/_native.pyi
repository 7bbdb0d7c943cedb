"""rocstar's fork server, built from csrc/ (theory of operation: csrc/sandbox/supervise.h)."""

from collections.abc import Callable
from typing import Any, TypedDict

MEMORY_EXIT: int
MOST_SHELL_BYTES: int

class Facts(TypedDict):
    kernel: str
    machine: str
    seccomp: bool
    user_notif: bool
    landlock_abi: int

class Layers:
    def __init__(
        self, *, seccomp: bool, notify: bool, truncate: bool, threads: bool = False, processes: bool = False
    ) -> None: ...

class ResultReader:
    """Cuts the supervisor's bytes into frames. A RESULT is (18, id, status index, exit code or None, signal
    or None, stdout, stderr, stdout cut, stderr cut, value or None, wall s, CPU s, peak bytes); other frames
    are (type, payload)."""

    def feed(self, bytes: bytes) -> list[tuple[Any, ...]]: ...  # noqa: A002 - the module's own name for it

def serve(
    fd: int,
    *,
    layers: Layers,
    hello: str,
    run_cell: Callable[[bytes, int], int],
    run_session_cell: Callable[[bytes, int | None], tuple[int, bytes, bool]],
) -> None:
    """Serves the supervisor's orders until it is gone; calls one of the functions in each confined child."""

def serve_cpp(fd: int, *, layers: Layers, command: list[str]) -> None:
    """As `serve`, of C++ programs; `command` compiles main.cpp to program and begins with a path."""

def serve_shell(fd: int, *, layers: Layers, bash: str) -> None:
    """As `serve`, of bash programs; `bash` is its path."""

def say_fatal(fd: int, json: str) -> None: ...
def probe() -> Facts: ...
def allowed_calls() -> dict[int, dict[str, str]]: ...
def filters() -> dict[str, bytes]: ...
def die_with_parent(parent: int) -> bool: ...
def compact_memory() -> int: ...
def collapse_heap() -> int: ...
def repair_utf8(bytes: bytes) -> str: ...  # noqa: A002 - the same
