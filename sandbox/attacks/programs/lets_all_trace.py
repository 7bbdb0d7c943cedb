# mypy: ignore-errors
# group: others
# tries: to let every process trace it
# breach: it is allowed
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
print("BREACH: it is allowed" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
