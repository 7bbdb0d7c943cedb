# mypy: ignore-errors
# group: others
# tries: to choose with whom it shares a core
# breach: a cookie is made
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.prctl(62, 1, 0, 0, 0)
print("BREACH: a cookie is made" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
