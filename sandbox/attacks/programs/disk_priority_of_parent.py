# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: the disk priority of another process
# breach: it is told
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.syscall(252, 1, os.getppid())
print("BREACH: it is told" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
