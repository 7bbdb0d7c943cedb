# group: processes
# tries: to replace itself by another program, which would forget what Python was told
# breach: the other program prints
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import os

try:
    os.execv("/bin/echo", ["echo", "BREACH: echo runs"])
except OSError as error:
    print(f"HELD: {error!r}")
