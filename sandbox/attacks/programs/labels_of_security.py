# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: the labels of the security modules
# breach: they are listed
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(461, buffer, buffer, 0)
print("BREACH: they are listed" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
