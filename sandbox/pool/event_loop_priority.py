"""The scheduling priority of the event loop's thread on a machine whose cores are busy.

The loop answers in well under a millisecond once it runs; on a busy machine most of the delay is the wait for
a core. Two settings shorten that wait:

    set_short_slice   a short time slice (Linux 6.12): the thread is preempted sooner, and scheduled sooner
                      after it slept. It needs no privilege and takes no processor time from other threads
    raise_priority    a higher priority (root or CAP_SYS_NICE) of the thread and of its session's group, where
                      the scheduler makes one for each session (autogroup). With autogroups a thread's
                      priority counts only among the threads of its session

Processes that work for other owners lower their priority (`lower_priority`): programs, and the processes that
decode large bodies, in their own sessions. A group that has used its share waits, whichever member used it.

A forked process has the default slice and priority again. A thread beside the loop also sets a short slice,
because the loop waits for the interpreter lock that the thread holds; it does not raise its priority.
"""

import ctypes
import os
import platform
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SLICE_NS = 100_000
"""The shortest slice that the kernel accepts."""

FIRST_NICE = -10
"""The loop's nice value: nine times the weight of the default. The loop sleeps most of the time."""

PROGRAMS_NICE = 5
"""The nice value of programs, so that a server and its supervisor are scheduled before them."""

SWITCH_S = 0.0005
"""The interpreter's switch interval. With Python's default of 5 ms, each callback of the loop waits that long
for the lock of a thread that decodes a large body."""

GROUP = Path("/proc/self/autogroup")

_NUMBERS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""The system call numbers of sched_setattr and sched_getattr."""

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, nice, priority, runtime, deadline, period: the first version of the structure."""

_RESET_ON_FORK = 1


@contextmanager
def raised_priority() -> Iterator[None]:
    """Set a short slice and raise the priority; restore both of the thread and its group on exit, because the
    process may continue after its server."""
    nice, usual = os.getpriority(os.PRIO_PROCESS, 0), slice_of_thread() if _takes_slices() else 0
    group = _nice_of_group()
    set_short_slice()
    raise_priority()
    try:
        yield
    finally:
        # Clearing the reset-on-fork flag needs a privilege. Without it the flag is harmless, so it stays.
        if not _ask(nice, usual, flags=0):
            _ask(nice, usual)
        if group is not None and _nice_of_group() != group:
            with suppress(OSError):
                GROUP.write_text(str(group))


def set_short_slice(slice_ns: int = SLICE_NS) -> bool:
    """Set the calling thread's time slice. Return False if the kernel is older than 6.12 or the machine's
    system call numbers are unknown."""
    return _takes_slices() and _ask(os.getpriority(os.PRIO_PROCESS, 0), slice_ns)


def raise_priority() -> bool:
    """Raise the priority of the calling thread, and of its session's group if this process leads the session;
    otherwise the group belongs to a terminal. Return False without the privilege, or if the process was
    started with a positive nice value."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice > 0 or not _ask(min(nice, FIRST_NICE), slice_of_thread() if _takes_slices() else 0):
        return False
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # no autogroups, or /proc is read-only
            GROUP.write_text(str(FIRST_NICE))
    return True


def lower_priority(nice: int = PROGRAMS_NICE) -> bool:
    """Lower the priority of the calling process and of the group of the session that it leads.

    Return False if the group is unchanged because the kernel lets all ordinary users together set only ten
    groups a second; the caller may retry.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        GROUP.write_text(str(nice))
    except BlockingIOError:
        return False
    except OSError:  # no autogroups, or /proc is read-only
        pass
    return True


def slice_of_thread(thread: int = 0) -> int:
    """Return the time slice of a thread (default: the calling one) in nanoseconds, or 0 if unknown."""
    numbers = _NUMBERS.get(platform.machine())
    room = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if numbers is None or ctypes.CDLL(None).syscall(numbers[1], thread, room, _ATTRIBUTES.size, 0) != 0:
        return 0
    runtime: int = _ATTRIBUTES.unpack(room.raw)[5]
    return runtime


def _nice_of_group() -> int | None:
    """Return the nice value of the session's group, or None without autogroups."""
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
    """Older kernels accept the call and ignore the slice."""
    numbers = re.match(r"(\d+)\.(\d+)", platform.release())  # None for a custom name
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (6, 12)
