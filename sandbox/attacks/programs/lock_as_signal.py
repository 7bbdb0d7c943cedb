# group: ipc
# tries: a lock on a file that all calls can read, as a bit that another call can see
# breach: the lock is held
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp
# breaches-without: seccomp
import fcntl
import os

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: locked")
