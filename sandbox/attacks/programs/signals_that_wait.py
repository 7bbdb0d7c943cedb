# mypy: ignore-errors
# group: memory
# tries: to fill the queue of signals that wait, which a user has once
# breach: more than a few hundred wait
# expect: ok
# output: HELD
# held-by: rlimits; seccomp
import ctypes
import os
import signal

libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 60))
sent = 0
for _ in range(2000):
    if libc.sigqueue(os.getpid(), 40, None) != 0:
        break
    sent += 1
print(f"BREACH: {sent}" if sent > 300 else "HELD: few")
