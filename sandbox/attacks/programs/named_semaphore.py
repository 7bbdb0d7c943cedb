# mypy: ignore-errors
# group: ipc
# tries: a named semaphore by multiprocessing, kept after the process
# breach: it exists
# expect: ok
# output: HELD: (OSError|PermissionError|FileNotFoundError)
# held-by: seccomp, landlock
import _multiprocessing

try:
    lock = _multiprocessing.SemLock(1, 1, 1, "/rocstar-breach", True)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {lock.name}")
