"""rocstar's fork server, built from csrc/ (theory of operation: csrc/supervise.h)."""

from collections.abc import Callable, Sequence
from typing import TypedDict

class Facts(TypedDict):
    kernel: str
    machine: str
    seccomp: bool
    landlock_abi: int

class Layers:
    def __init__(
        self, *, seccomp: bool, landlock: bool, slot_uid: bool, readable_paths: Sequence[str]
    ) -> None: ...
    @property
    def names(self) -> str: ...

def serve(
    fd: int,
    *,
    max_live: int,
    layers: Layers,
    run_cell: Callable[[bytes, int], int],
    memory_exit: int,
) -> None:
    """Serves frames from the socket until it closes; calls `run_cell` in a confined child for each."""

def probe() -> Facts: ...
def die_with_parent(parent: int) -> bool: ...
def collapse_heap() -> int: ...
def repair_utf8(bytes: bytes) -> str: ...
