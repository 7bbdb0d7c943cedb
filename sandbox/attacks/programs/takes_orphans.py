# mypy: ignore-errors
# group: others
# tries: to become the parent of orphans
# breach: it is
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.prctl(36, 1, 0, 0, 0)
print("BREACH: it is" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
