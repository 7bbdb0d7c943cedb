# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: on which node of memory a page lies
# breach: it is told
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(239, buffer, 0, 0, 0, 0)
print("BREACH: it is told" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
