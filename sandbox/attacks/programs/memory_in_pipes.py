# group: memory
# tries: to keep kernel memory in pipes grown to a megabyte each
# breach: a pipe grew
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp
# breaches-without: seccomp
import fcntl
import os

read_end, write_end = os.pipe()
try:
    size = fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 1 << 20)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {size} bytes")
