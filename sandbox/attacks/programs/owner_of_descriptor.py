# mypy: ignore-errors
# group: ipc
# tries: to have signals for a descriptor sent to another process
# breach: it is set
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    got = fcntl.fcntl(fd, fcntl.F_SETOWN, 1)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is set,", got)
