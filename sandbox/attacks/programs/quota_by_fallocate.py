# group: files
# tries: to reserve disk space without writing
# breach: a gigabyte is reserved
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, rlimits
import os

try:
    fd = os.open("reserved", os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, 1 << 30)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: a gigabyte")
