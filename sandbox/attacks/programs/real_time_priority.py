# group: cpu
# tries: to become a real-time process, before which all others wait
# breach: the scheduler accepts
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, nnp
import os

try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: real time")
