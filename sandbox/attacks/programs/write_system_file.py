# group: files
# tries: to open a system file for appending, without writing to it
# breach: it is open
# expect: ok
# output: HELD: (OSError|PermissionError)
# held-by: seccomp, landlock, uid
# breaches-without: seccomp+landlock+uid when root
import os

try:
    os.close(os.open("/etc/passwd", os.O_WRONLY | os.O_APPEND))
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: open for writing")
