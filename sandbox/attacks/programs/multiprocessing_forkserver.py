# group: processes
# tries: multiprocessing's fork server, a process that listens on a socket and outlives its client
# breach: the fork server is running
# expect: ok
# output: HELD: (PermissionError|OSError|FileNotFoundError)
# held-by: seccomp, landlock
from multiprocessing import forkserver

try:
    forkserver.ensure_running()
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print("BREACH: a fork server runs")
