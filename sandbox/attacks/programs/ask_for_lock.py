# mypy: ignore-errors
# group: ipc
# tries: to learn of a lock on a library that another call has placed
# breach: the lock is seen
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os
import struct
import time

LOCK = "hhqqi4x"
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack(LOCK, fcntl.F_RDLCK, 0, 7, 1, 0))
print("HELD: waiting")
time.sleep(0.4)

# %% meanwhile
# tries: to ask for it
# expect: ok
# output: HELD
import fcntl
import os
import struct
import time

LOCK = "hhqqi4x"
time.sleep(0.2)
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
got = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(LOCK, fcntl.F_WRLCK, 0, 7, 1, 0))
print("HELD" if struct.unpack(LOCK, got)[0] == fcntl.F_UNLCK else f"BREACH: {got!r}")
