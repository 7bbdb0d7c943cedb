# mypy: ignore-errors
# group: ipc
# tries: to learn of a lock of another call's open file description on a library
# breach: the lock is seen
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os
import struct
import time

LOCK, OFD_SETLK = "hhqqi4x", 37
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
fcntl.fcntl(fd, OFD_SETLK, struct.pack(LOCK, fcntl.F_RDLCK, 0, 9, 1, 0))
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

LOCK, OFD_GETLK = "hhqqi4x", 36
time.sleep(0.2)
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
got = fcntl.fcntl(fd, OFD_GETLK, struct.pack(LOCK, fcntl.F_WRLCK, 0, 9, 1, 0))
print("HELD" if struct.unpack(LOCK, got)[0] == fcntl.F_UNLCK else f"BREACH: {got!r}")
