# group: others
# tries: prlimit on its parent, to starve it of descriptors
# breach: the limit is set
# expect: ok
# output: HELD: (PermissionError|ProcessLookupError)
# held-by: seccomp, uid, nnp
import os
import resource

try:
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (8, 8))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: limited")
