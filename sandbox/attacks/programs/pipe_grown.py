# mypy: ignore-errors
# group: ipc
# tries: to grow a pipe, whose pages all of a user share
# breach: it is grown
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os

fd = os.open("/dev/null", os.O_RDONLY)
try:
    got = fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is grown,", got)
