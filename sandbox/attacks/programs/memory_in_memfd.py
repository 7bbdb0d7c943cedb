# group: memory
# tries: a memory file, which no address space limit counts and which could be executed
# breach: it exists
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp
# breaches-without: seccomp
import os

try:
    fd = os.memfd_create("hidden")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: descriptor {fd}")
