# group: processes
# tries: to become another user
# breach: the user id has changed
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, nnp
import os

try:
    os.setresuid(4321, 4321, 4321)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: uid {os.getuid()}")
