# mypy: ignore-errors
# group: ipc
# tries: to be signalled when somebody reads a folder of the library
# breach: it is promised
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os

fd = os.open(os.path.dirname(os.path.realpath(os.__file__)), os.O_RDONLY)
try:
    got = fcntl.fcntl(fd, 1026, 0x80000001)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is promised,", got)
