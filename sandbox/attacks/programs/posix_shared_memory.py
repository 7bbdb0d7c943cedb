# mypy: ignore-errors
# group: ipc
# tries: POSIX shared memory under a name that a later call can open
# breach: it exists
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import _posixshmem
import os

try:
    fd = _posixshmem.shm_open("/rocstar-breach", os.O_CREAT | os.O_RDWR, mode=0o600)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    _posixshmem.shm_unlink("/rocstar-breach")
    print(f"BREACH: descriptor {fd}")
