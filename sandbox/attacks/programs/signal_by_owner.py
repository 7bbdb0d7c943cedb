# group: others
# tries: to become the owner of another process's signals: input on a pipe would then signal the parent
# breach: fcntl accepts the owner
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp, landlock
# breaches-without: seccomp
import fcntl
import os

read_end, _ = os.pipe()
try:
    fcntl.fcntl(read_end, fcntl.F_SETOWN, os.getppid())
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: owner set")
