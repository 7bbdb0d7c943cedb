# mypy: ignore-errors
# group: ipc
# tries: to leave a write hint on the inode of a library, which all can read
# breach: it is left
# expect: ok
# output: HELD
# held-by: seccomp
import fcntl
import os

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    got = fcntl.fcntl(fd, 1036, (3).to_bytes(8, "little"))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: it is left,", got)
