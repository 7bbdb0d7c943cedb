# mypy: ignore-errors
# when: live
# through: fcntl
# tries: the place of a record lock on /dev/null, which each program may write
import fcntl
import os
import struct
import time

fd = os.open("/dev/null", os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, FRAME, 1, 0))
time.sleep(HOLD_S)
# %% receiver
import fcntl
import os
import struct

fd = os.open("/dev/null", os.O_RDWR)
def look():
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    kind, _, start, _, _ = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, lock))
    return start if kind != fcntl.F_UNLCK else -1
receive(look)
