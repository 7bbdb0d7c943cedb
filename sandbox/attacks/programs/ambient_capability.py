# mypy: ignore-errors
# group: others
# tries: to keep a capability over an exec
# breach: it is kept
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.prctl(47, 2, 21, 0, 0)
print("BREACH: it is kept" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
