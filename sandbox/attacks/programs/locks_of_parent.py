# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: where the list of locks of another process lies
# breach: it is told
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(274, os.getppid(), buffer, buffer)
print("BREACH: it is told" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
