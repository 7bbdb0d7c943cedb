# mypy: ignore-errors
# group: ipc
# tries: to ask who holds a lock on a library
# breach: it is answered
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    got = fcntl.fcntl(fd, fcntl.F_GETLK, b"\0" * 32)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is answered,", got)
