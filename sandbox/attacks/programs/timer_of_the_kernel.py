# group: cpu
# tries: a POSIX timer that signals another thread or process
# breach: the timer exists
# expect: ok
# output: HELD: errno 1
# held-by: seccomp, and where programs share a user the limit of signals that wait
# breaches-without: seccomp when users
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
timer = ctypes.c_int()
number = {"x86_64": 222, "aarch64": 107}[os.uname().machine]
result = libc.syscall(number, 1, 0, ctypes.byref(timer))
print("BREACH: a timer" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
