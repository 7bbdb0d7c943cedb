# mypy: ignore-errors
# group: ipc
# tries: to ask for locks of open file descriptions
# breach: it is answered
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    got = fcntl.fcntl(fd, 36, b"\0" * 32)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is answered,", got)
