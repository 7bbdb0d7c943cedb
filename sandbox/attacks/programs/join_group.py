# group: processes
# tries: to add supplementary groups, such as that of disks or of Docker
# breach: setgroups returns 0
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, nnp
import os

try:
    os.setgroups([0, 6, 999])
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: groups {os.getgroups()}")
