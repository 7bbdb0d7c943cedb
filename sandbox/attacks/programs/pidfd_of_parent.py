# group: others
# tries: a pidfd of its parent, to signal it without a process id
# breach: the pidfd exists
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp
# breaches-without: seccomp
import os

try:
    fd = os.pidfd_open(os.getppid() or 1)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: descriptor {fd}")
