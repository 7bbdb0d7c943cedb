# mypy: ignore-errors
# when: after
# bits: 1
# through: clock_gettime clock_getres clock_nanosleep
# tries: the processor time of other processes, to the nanosecond
# %% receiver
import ctypes
import os
import time

libc = ctypes.CDLL(None)
past = (ctypes.c_long * 2)(0, 0)
own = os.getpid()
def reads(ask, clock):
    try:
        return ask(clock) is not None
    except OSError:
        return False
seen = []
for pid in range(max(1, own - 600), own):
    clock = (~pid << 3) | 2
    seen += [("gettime", pid)] * reads(time.clock_gettime, clock)
    seen += [("getres", pid)] * reads(time.clock_getres, clock)
    if libc.clock_nanosleep(ctypes.c_int(clock), 1, past, None) == 0:
        seen.append(("nanosleep", pid))
if seen:
    print("BREACH:", seen[:5])
