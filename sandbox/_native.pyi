"""rocstar's fork server, built from csrc/ (theory of operation: csrc/sandbox/supervise.h)."""

from collections.abc import Callable
from io import BufferedWriter, FileIO
from types import ModuleType
from typing import Any, TypedDict

LONG_TEXT_BYTES: int
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
        self,
        *,
        seccomp: bool,
        notify: bool,
        truncate: bool,
        threads: bool = False,
        processes: bool = False,
        hides: bool = False,
    ) -> None: ...

class LongText:
    """UTF-8 that is no Python text yet. Its length is in bytes."""

    def __len__(self) -> int: ...
    def read(self) -> str:
        """The text. Blocks, and lets go of the interpreter's lock while it does."""

class ResultReader:
    """Cuts the supervisor's bytes into frames. A RESULT is (18, id, status index, exit code or None, signal
    or None, stdout, stderr, stdout cut, stderr cut, value or None, wall s, CPU s, peak bytes), in which a
    text of LONG_TEXT_BYTES or more is a LongText; other frames are (type, payload)."""

    def feed(self, bytes: bytes) -> list[tuple[Any, ...]]: ...  # noqa: A002 - the module's own name for it

class Programs:
    """Runs programs as the functions of `cell` (sandbox/child/cell.py) do, with what the module and the
    interpreter have now."""

    def __init__(self, cell: ModuleType) -> None: ...
    def run(self, code: bytes, seed: int | None) -> int:
        """The exit code for this process; a seed is drawn where it is None and needed."""

def evaluate(
    source: str, names: dict[str, Any], file: str, tree: Callable[[str, dict[str, Any], str], object]
) -> object:
    """Runs the statements; the value of a trailing expression. `tree`: what does so by the syntax tree."""

def call_alone(function: Callable[..., Any], /, *arguments: object) -> Any:
    """What it gives, called with no frame of ours below it: what a program finds of its stack is its own."""

def fit_value(value: bytes) -> bytes:
    """Of a value that is told, as much as this child may send: head, mark and tail of a longer one."""

def make_prompt_writer(raw: FileIO) -> BufferedWriter:
    """A buffered writer that keeps no text back (csrc/sandbox/prompt_writer.h)."""

def make_places(kept: list[str]) -> None:
    """Of a zygote: where its children will write HOME and TMPDIR, and from where csrc/sandbox/places.cpp
    leads /tmp and the like. kept: folders in there that stay what they are."""

def serve(
    fd: int,
    *,
    layers: Layers,
    hello: str,
    programs: Programs,
    run_session_cell: Callable[[bytes, int | None], tuple[int, bytes, bool]],
) -> None:
    """Serves the supervisor's orders until it is gone: runs a program or a session's cells in each child."""

def serve_cpp(fd: int, *, layers: Layers, command: list[str], preload: str = "") -> None:
    """As `serve`, of C++ programs; `command` compiles main.cpp to program and begins with a path.
    `preload`: a library for the program."""

def serve_shell(fd: int, *, layers: Layers, bash: str, preload: str = "") -> None:
    """As `serve`, of bash programs; `bash` is its path, `preload` a library for it and its tools."""

def say_fatal(fd: int, json: str) -> None: ...
def say_at(fd: int, what: str) -> None: ...
def probe() -> Facts: ...
def allowed_calls() -> dict[int, dict[str, str]]: ...
def filters() -> dict[str, bytes]: ...
def die_with_parent(parent: int) -> bool: ...
def use_up_free_objects() -> None: ...
def use_up_free_memory() -> None: ...
def put_first_objects_together() -> None: ...
def compact_memory() -> int: ...
def collapse_heap() -> int: ...
def remove_tree(path: str) -> None:
    """A folder and what is in it, however deep, as far as that can be removed. Follows no link, and does not
    keep the interpreter's lock."""

def decode_text(bytes: bytes | memoryview) -> str:  # noqa: A002 - the same
    """As `bytes.decode("utf-8", "surrogatepass")`, without the interpreter's lock meanwhile. Raises
    UnicodeDecodeError."""

def repair_utf8(bytes: bytes) -> str: ...  # noqa: A002 - the same
