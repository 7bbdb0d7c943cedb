# group: others
# tries: to lock files that every call reads, so that others wait
# breach: another call cannot read or import them
# expect: ok
# output: holding
# held-by: locks are advice
import contextlib
import fcntl
import json
import os
import time

fd = os.open(os.path.realpath(json.__file__), os.O_RDONLY)
with contextlib.suppress(OSError):
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
with contextlib.suppress(OSError):
    fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
print("holding")
time.sleep(1)
# %% meanwhile
# tries: to read the locked file
# expect: ok
# output: HELD: [1-9]
import json
import time

time.sleep(0.3)
with open(json.__file__) as file:
    print("HELD:", len(file.read()))
