"""Asks the kernel to let this thread run soon after it wakes, however many others want the cores.

The loop answers in well under a millisecond once it runs; on a busy machine it waits for a core most of the
time. From Linux 6.12 on a thread may ask for a short time slice: it is then preempted sooner, and in return
gets its turn sooner after it slept. No right is needed for that, and nobody gets less of the processor. What
is forked from here has the usual slice again.

A process of its own that says "healthy" would be quicker still, and say so while the loop hangs.
"""

import ctypes
import os
import platform
import struct

SLICE_NS = 100_000
"""The shortest that the kernel takes."""

_NUMBERS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Of sched_setattr and sched_getattr."""

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, nice, priority, runtime, deadline, period: the first version of the structure."""

_RESET_ON_FORK = 1


def run_soon(slice_ns: int = SLICE_NS) -> bool:
    """For the calling thread. False where the kernel is older, or does not know the machine."""
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None or not _takes_slices():
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, slice_ns, 0, 0)
    failed: int = ctypes.CDLL(None, use_errno=True).syscall(numbers[0], 0, wanted, 0)
    return failed == 0


def slice_of_thread() -> int:
    """The calling thread's, in nanoseconds; 0 where it cannot be told."""
    numbers = _NUMBERS.get(platform.machine())
    room = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if numbers is None or ctypes.CDLL(None).syscall(numbers[1], 0, room, _ATTRIBUTES.size, 0) != 0:
        return 0
    runtime: int = _ATTRIBUTES.unpack(room.raw)[5]
    return runtime


def _takes_slices() -> bool:
    """An older kernel takes the call, and not the slice."""
    release = platform.release().split(".")
    try:
        return (int(release[0]), int(release[1])) >= (6, 12)
    except (IndexError, ValueError):  # a release of somebody's own naming
        return False
