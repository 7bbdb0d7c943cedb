# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: to flush all file systems
# breach: it is done
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.syscall(162, 0)
print("BREACH: it is done" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
