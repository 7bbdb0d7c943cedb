# mypy: ignore-errors
# group: ipc
# tries: a lock on a file that all calls can read, as a bit that another call can see
# breach: the lock is held: another description of the file cannot be locked
# expect: ok
# output: HELD
# held-by: seccomp (it succeeds and does nothing)
# breaches-without: seccomp
import fcntl
import os

path = os.path.realpath(os.__file__)
fd, other = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("BREACH: locked")
else:
    print("HELD: both are told that they have it")
