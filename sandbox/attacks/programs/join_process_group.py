# group: processes
# tries: to join the process group of its parent, whose group signals would then be shared
# breach: the group id is the parent's
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, the session of its own
import os

try:
    os.setpgid(0, os.getpgid(os.getppid()))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: in the parent's group")
