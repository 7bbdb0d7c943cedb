# mypy: ignore-errors
# group: files
# needs: x86_64
# tries: the numbers of all mounts
# breach: they are listed
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(458, buffer, buffer, 8, 0)
print("BREACH: they are listed" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
