# group: processes
# tries: execveat on an open descriptor of the Python binary, so that no path is looked up
# breach: a fresh interpreter prints
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import os
import sys

fd = os.open(os.path.realpath(sys.executable), os.O_RDONLY)
try:
    os.execve(fd, ["python", "-S", "-c", "print('BREACH: a fresh interpreter')"], {})
except OSError as error:
    print(f"HELD: {error!r}")
