"""Memory of the host: what glibc returns to the system after each step, and copies to and from a GPU.

An update of a small model frees and takes a hundred megabytes. glibc returns them to the kernel, which clears
them page by page at the next touch; under a hypervisor that takes free pages back, a page costs over 10 us.

A GPU copies pinned (page-locked) memory by itself, at the speed of its bus. Pageable memory goes through a
buffer of the driver, a part at a time.
"""

import ctypes
import gc
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

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
    wishes = {M_ARENA_MAX: 1, M_MMAP_THRESHOLD: LARGEST_KEPT_BYTES, M_TRIM_THRESHOLD: NEVER}
    return all(mallopt(name, value) for name, value in wishes.items())


def give_freed_memory_back() -> bool:
    """Return freed memory to the system, after a run in a process that continues. False as above."""
    trim = _of_glibc("malloc_trim")
    if trim is None:
        return False
    gc.collect()
    trim(0)
    return True


def _of_glibc(name: str) -> Any:
    """The function of this name; None where malloc is not glibc's."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def sent(tensors: Iterable[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors on `device`; a tensor that is there already is returned as it is.

    Copies between a GPU and the host are queued in the GPU's current stream, behind its earlier work, and are
    complete on return. Until then both ends are referenced, so that no allocator reuses their memory. Copies
    on the host are pinned; they are pageable if the system refuses to pin more memory. torch rounds the size
    of a pinned tensor up to a power of two, and keeps the memory for the next copy.
    """
    sources = list(tensors)
    found, can_pin = [], True
    for source in sources:
        if source.device == device:
            found.append(source)
        elif source.device.type == "cuda" and device.type == "cpu":
            target = _pinned_like(source) if can_pin else None
            can_pin = target is not None
            target = torch.empty_like(source, device=device) if target is None else target
            found.append(target.copy_(source, non_blocking=True))
        else:
            found.append(source.to(device, non_blocking=True))
    devices = {device, *(source.device for source in sources)}
    for gpu in devices if len(devices) > 1 else ():
        if gpu.type == "cuda":
            _wait_for(gpu)
    return found


def _pinned_like(source: Tensor) -> Tensor | None:
    """An empty pinned tensor on the host; None if the system refuses."""
    try:
        return torch.empty_like(source, device="cpu", pin_memory=True)
    except RuntimeError:  # the driver's: no more memory can be pinned
        return None


def _wait_for(gpu: torch.device) -> None:
    """Return when the GPU's current stream has done all that is queued."""
    torch.cuda.current_stream(gpu).synchronize()
