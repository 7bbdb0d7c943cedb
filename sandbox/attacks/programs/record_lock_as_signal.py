# group: ipc
# tries: a record lock that another call can see by asking, or by failing to take the same
# breach: the second call sees the first one's lock
# expect: ok
# output: holding
# held-by: seccomp (it succeeds and does nothing)
import contextlib
import fcntl
import os
import time

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
with contextlib.suppress(OSError):
    fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
print("holding")
time.sleep(1)
# %% meanwhile
# tries: to take the lock that only one can hold
# expect: ok
# output: HELD: (PermissionError|OSError|nothing)
import fcntl
import os
import time

time.sleep(0.3)
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError as error:
    print(f"BREACH: seen, {error!r}")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("HELD: nothing is locked, whatever is said")
