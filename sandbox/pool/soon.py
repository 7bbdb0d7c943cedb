"""Asks the kernel to let the loop's thread run soon after it wakes, however many others want the cores.

The loop answers in well under a millisecond once it runs; on a busy machine it waits for a core most of the
time. Two things shorten that wait:

    run_soon    a short time slice (Linux 6.12): preempted sooner, and in return its turn comes sooner after
                it slept. No right is needed, and nobody gets less of the processor
    come_first  a higher priority, where there is the right (root, CAP_SYS_NICE): of the thread, and of its
                session's group, where the scheduler makes one of each session (autogroup). There a thread's
                own priority counts among the threads of its session alone

And what works for others stands back (`stand_back`): programs, and what decodes large bodies, in sessions of
their own. A group that has had its share waits, whoever of it used the time.

What is forked from here has the usual slice and priority again. A thread beside the loop asks for short
slices too, as the loop waits for the interpreter's lock that it holds; not for priority: it works for others.

A process of its own that says "healthy" would be quicker still, and say so while the loop hangs.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SLICE_NS = 100_000
"""The shortest that the kernel takes."""

FIRST_NICE = -10
"""Of the loop: nine times the weight of a process of the usual priority. It sleeps most of the time."""

PROGRAMS_NICE = 5
"""How far programs stand back from a server and its supervisor, which answer for all of them."""

SWITCH_S = 0.0005
"""How long a thread beside the loop keeps the interpreter's lock from it, at each of the loop's callbacks: at
Python's own 5 ms a few of them would wait for as long as a large body is decoded."""

GROUP = Path("/proc/self/autogroup")

_NUMBERS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Of sched_setattr and sched_getattr."""

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, nice, priority, runtime, deadline, period: the first version of the structure."""

_RESET_ON_FORK = 1


@contextmanager
def ahead_of_others() -> Iterator[None]:
    """Inside, both. Behind it the thread and its session's group are as before: a server may be a part of a
    process that goes on."""
    nice, usual = os.getpriority(os.PRIO_PROCESS, 0), slice_of_thread() if _takes_slices() else 0
    group = _nice_of_group()
    run_soon()
    come_first()
    try:
        yield
    finally:
        # Without the right nobody takes it back that what is forked is reset, which changes nothing then.
        if not _ask(nice, usual, flags=0):
            _ask(nice, usual)
        if group is not None and _nice_of_group() != group:
            with suppress(OSError):
                GROUP.write_text(str(group))


def run_soon(slice_ns: int = SLICE_NS) -> bool:
    """For the calling thread. False where the kernel is older, or does not know the machine."""
    return _takes_slices() and _ask(os.getpriority(os.PRIO_PROCESS, 0), slice_ns)


def come_first() -> bool:
    """For the calling thread, and for its session's group if this process leads the session: else the group
    is somebody's terminal. False without the right, and where somebody chose a lower priority than usual."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice > 0 or not _ask(min(nice, FIRST_NICE), slice_of_thread() if _takes_slices() else 0):
        return False
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # no groups, or /proc is read-only
            GROUP.write_text(str(FIRST_NICE))
    return True


def stand_back(nice: int = PROGRAMS_NICE) -> bool:
    """Lowers the calling process, and the group of the session that it leads. False if the group is as it
    was: a machine's ordinary users may set ten of them a second, together. Then it can be asked for again."""
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        GROUP.write_text(str(nice))
    except BlockingIOError:
        return False
    except OSError:  # no groups, or /proc is read-only
        pass
    return True


def slice_of_thread(thread: int = 0) -> int:
    """A thread's, or the calling one's, in nanoseconds; 0 where it cannot be told."""
    numbers = _NUMBERS.get(platform.machine())
    room = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if numbers is None or ctypes.CDLL(None).syscall(numbers[1], thread, room, _ATTRIBUTES.size, 0) != 0:
        return 0
    runtime: int = _ATTRIBUTES.unpack(room.raw)[5]
    return runtime


def _nice_of_group() -> int | None:
    """None where the scheduler makes no groups of sessions."""
    with suppress(OSError, ValueError):
        return int(GROUP.read_text().split()[-1])
    return None


def _ask(nice: int, slice_ns: int, flags: int = _RESET_ON_FORK) -> bool:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return False
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, flags, nice, 0, slice_ns, 0, 0)
    failed: int = ctypes.CDLL(None, use_errno=True).syscall(numbers[0], 0, wanted, 0)
    return failed == 0


def _takes_slices() -> bool:
    """An older kernel takes the call, and not the slice."""
    release = platform.release().split(".")
    try:
        return (int(release[0]), int(release[1])) >= (6, 12)
    except (IndexError, ValueError):  # a release of somebody's own naming
        return False
