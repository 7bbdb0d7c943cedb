# group: files
# tries: to write to its memory through /proc, which ignores page protection
# breach: the file is open for writing
# expect: ok
# output: HELD: (OSError|PermissionError|FileNotFoundError)
# held-by: seccomp, landlock
import os

try:
    fd = os.open("/proc/self/mem", os.O_RDWR)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: descriptor {fd}")
