# group: others
# tries: to kill every process it may
# breach: the call succeeds
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, landlock, uid
import os
import signal

try:
    os.kill(-1, signal.SIGKILL)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: sent")
