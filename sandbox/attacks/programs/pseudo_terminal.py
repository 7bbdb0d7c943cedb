# group: processes
# tries: to open a pseudo terminal and fork a child that controls it
# breach: a terminal is opened
# expect: ok
# output: HELD: (PermissionError|OSError|FileNotFoundError)
# held-by: seccomp, landlock
# breaches-without: seccomp+landlock
import os

try:
    leader, follower = os.openpty()
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: {os.ttyname(follower)}")
