# mypy: ignore-errors
# group: ipc
# tries: a named semaphore by multiprocessing, which another process finds by its name
# breach: a name of it exists
# expect: ok
# output: HELD
# held-by: seccomp, landlock
import _multiprocessing

lock = _multiprocessing.SemLock(1, 1, 1, "/rocstar-breach", False)
try:
    other = _multiprocessing.SemLock._rebuild(lock.handle + 4096, 1, 1, "/rocstar-breach")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {other.name}")
