# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: to signal through a handle of a process that is no handle
# breach: it is not refused
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.syscall(424, 0, 9, None, 0)
print("BREACH: it is not refused" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
