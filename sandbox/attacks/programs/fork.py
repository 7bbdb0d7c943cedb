# group: processes
# tries: to have a second process
# breach: the child exists and is reaped
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, rlimits
# breaches-without: seccomp
import os

try:
    pid = os.fork()
except OSError as error:
    print(f"HELD: {error!r}")
else:
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    print("BREACH: forked")
