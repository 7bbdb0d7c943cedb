# group: ipc
# tries: a record lock by fcntl, the other kind of lock
# breach: the lock is held
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp
# breaches-without: seccomp
import fcntl
import os

fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
try:
    fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: locked")
