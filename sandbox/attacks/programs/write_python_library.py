# group: files
# tries: to open a module of the standard library for writing, which later calls would import
# breach: it is open
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, landlock, uid
# breaches-without: seccomp+landlock+uid when root
import os

try:
    os.close(os.open(os.path.realpath(os.__file__), os.O_RDWR))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: open for writing")
