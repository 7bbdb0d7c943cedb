# mypy: ignore-errors
# group: ipc
# tries: to read the write hint of an inode
# breach: it is read
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    got = fcntl.fcntl(fd, 1035, bytes(8))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is read,", got)
