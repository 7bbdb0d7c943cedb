# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: a file that reads signals
# breach: it is made
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(289, -1, buffer, 8, 0)
print("BREACH: it is made" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
