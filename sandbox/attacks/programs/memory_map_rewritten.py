# mypy: ignore-errors
# group: others
# tries: to change what /proc says of its memory
# breach: it is changed
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.prctl(35, 14, 0, 0, 0)
print("BREACH: it is changed" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
