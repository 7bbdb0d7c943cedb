# group: others
# tries: to lower the priority of its parent
# breach: the priority is set
# expect: ok
# output: HELD: (PermissionError|ProcessLookupError)
# held-by: seccomp, uid
import os

try:
    os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: lowered")
