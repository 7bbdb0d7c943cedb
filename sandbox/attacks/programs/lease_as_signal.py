# group: ipc
# tries: a lease or a directory notice by fcntl, which tells when others open a file
# breach: the notice is set
# expect: ok
# output: HELD: (PermissionError|OSError)
# held-by: seccomp
# breaches-without: seccomp
import fcntl
import os

fd = os.open(os.path.dirname(os.path.realpath(os.__file__)), os.O_RDONLY)
try:
    fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: notified")
