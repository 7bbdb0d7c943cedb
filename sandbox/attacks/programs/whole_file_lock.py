# mypy: ignore-errors
# group: ipc
# tries: flock on a library file, which another call tries to take as well
# breach: the second call is kept out
# expect: ok
# output: HELD
# held-by: seccomp
import contextlib
import fcntl
import os
import time

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
with contextlib.suppress(OSError):
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("HELD: waiting")
time.sleep(0.4)

# %% meanwhile
# tries: to take the same lock
# expect: ok
# output: HELD
import fcntl
import os
import time

time.sleep(0.2)
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError as error:
    print(f"BREACH: {error!r}")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("HELD: nobody else's lock is seen")
