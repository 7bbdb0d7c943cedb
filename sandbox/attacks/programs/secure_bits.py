# mypy: ignore-errors
# group: others
# tries: to lock the bits of capabilities
# breach: they are locked
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.prctl(28, 47, 0, 0, 0)
print("BREACH: they are locked" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
