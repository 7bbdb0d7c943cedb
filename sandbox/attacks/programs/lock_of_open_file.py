# mypy: ignore-errors
# group: ipc
# tries: to place a lock of an open file description on a library
# breach: it is placed: another description of the same file sees it
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os
import struct

OFD_GETLK, OFD_SETLK = 36, 37
LOCK = "hhqqi4x"
path = os.path.realpath(os.__file__)
fd, other = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
fcntl.fcntl(fd, OFD_SETLK, struct.pack(LOCK, fcntl.F_RDLCK, 0, 0, 1, 0))
got = fcntl.fcntl(other, OFD_GETLK, struct.pack(LOCK, fcntl.F_WRLCK, 0, 0, 1, 0))
print("HELD" if struct.unpack(LOCK, got)[0] == fcntl.F_UNLCK else f"BREACH: {got!r}")
