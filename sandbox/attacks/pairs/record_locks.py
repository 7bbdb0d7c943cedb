# mypy: ignore-errors
# when: live
# through: fcntl
# tries: the place of a record lock on a library file as a number
import fcntl
import os
import struct
import time

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, FRAME, 1, 0))
time.sleep(HOLD_S)
# %% receiver
import fcntl
import os
import struct

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
def look():
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    kind, _, start, _, _ = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, lock))
    return start if kind != fcntl.F_UNLCK else -1
receive(look)
