# group: processes
# tries: to reap a sibling, so that its parent would miss the end
# breach: waitpid returns a process id
# expect: ok
# output: HELD: ChildProcessError
# held-by: fork
import os

try:
    pid, status = os.waitpid(-1, os.WNOHANG | 0x20000000 | 0x40000000)
except OSError as error:
    print(f"HELD: {error!r}")
else:
    print(f"BREACH: reaped {pid}" if pid else "BREACH: has children")
