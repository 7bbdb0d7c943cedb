# mypy: ignore-errors
# group: ipc
# tries: to set a lock of an open file description on a library
# breach: it is set
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    got = fcntl.fcntl(fd, 37, b"\0" * 32)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is set,", got)
