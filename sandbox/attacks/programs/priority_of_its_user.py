# group: cpu
# tries: to have its parents, and all that run as the same user, wait for everybody else
# breach: one of them is less urgent than before
# expect: ok
# output: HELD
# held-by: uid, seccomp, landlock
import os

before = {}
for pid in (os.getppid(), 1):
    try:
        before[pid] = os.getpriority(os.PRIO_PROCESS, pid)
    except OSError:
        continue
tries = [(os.PRIO_PROCESS, pid) for pid in (os.getppid(), 1)]
tries += [(os.PRIO_PGRP, 0), (os.PRIO_PGRP, os.getppid()), (os.PRIO_USER, 0), (os.PRIO_USER, os.getuid())]
for which, who in tries:
    try:
        os.setpriority(which, who, 19)
    except OSError:
        continue
    if which == os.PRIO_PROCESS:
        print(f"BREACH: {who}")
for pid, priority in before.items():
    if os.getpriority(os.PRIO_PROCESS, pid) != priority:
        print(f"BREACH: {pid} {priority}")
print("HELD")
