# group: cpu
# tries: to choose the cores it runs on
# breach: the call succeeds
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp
# breaches-without: seccomp
import os

try:
    os.sched_setaffinity(0, os.sched_getaffinity(0))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: cores chosen")
