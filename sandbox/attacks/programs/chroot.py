# group: files
# tries: chroot, the classic way out of one
# breach: chroot returns 0
# expect: ok
# output: HELD: PermissionError
# held-by: seccomp, nnp
import os

try:
    os.chroot(".")
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: a root of its own")
