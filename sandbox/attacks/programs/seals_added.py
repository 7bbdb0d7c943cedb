# mypy: ignore-errors
# group: ipc
# tries: to seal what is standard input
# breach: it is sealed
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os

fd = os.open("/dev/null", os.O_RDONLY)
try:
    got = fcntl.fcntl(fd, 1033, 1)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is sealed,", got)
