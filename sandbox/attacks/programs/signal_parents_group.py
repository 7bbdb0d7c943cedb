# group: others
# tries: to signal the process group of its parent
# breach: the signal is sent
# expect: ok
# output: HELD: (PermissionError|ProcessLookupError)
# held-by: seccomp, landlock, uid
import os
import signal

try:
    os.killpg(os.getpgid(os.getppid()), signal.SIGCONT)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: sent")
