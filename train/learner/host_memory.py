"""Memory that a learner on the CPU gives back to the system after each step, to fault it in again.

An update of a small model frees and takes a hundred megabytes. glibc returns them to the kernel, which clears
them page by page at the next touch; under a hypervisor that takes free pages back, a page costs over 10 us.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""
LARGEST_KEPT_BYTES = 32 << 20
"""glibc takes no higher threshold: larger blocks are mapped and unmapped one by one."""
NEVER = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Keep freed blocks of up to 32 MiB with this process from now on. False where malloc is not glibc's.

    One arena for all threads: those of other threads are unmapped as soon as they are empty.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is None:
        return False
    wishes = {
        M_ARENA_MAX: 1,
        M_MMAP_THRESHOLD: LARGEST_KEPT_BYTES,
        M_TRIM_THRESHOLD: NEVER,
    }
    return all(mallopt(name, value) for name, value in wishes.items())


def give_freed_memory_back() -> bool:
    """Return to the system what was kept so far: behind a run, for a process that goes on. False as above."""
    trim = _of_glibc("malloc_trim")
    if trim is None:
        return False
    gc.collect()
    trim(0)
    return True


def _of_glibc(name: str) -> Any:
    """The function of this name; None where malloc is not glibc's."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
