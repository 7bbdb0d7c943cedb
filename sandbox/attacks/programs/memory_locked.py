# group: memory
# tries: to lock its memory, which the machine could then not swap out
# breach: mlockall returns 0
# expect: ok
# output: HELD: errno
# held-by: seccomp, rlimits
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
result = libc.mlockall(1)
print("BREACH: locked" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
