# group: files
# tries: a device file for the machine's memory
# breach: it exists
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, landlock, nnp
import os
import stat

try:
    os.mknod("mem", stat.S_IFCHR | 0o600, os.makedev(1, 1))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: a device")
