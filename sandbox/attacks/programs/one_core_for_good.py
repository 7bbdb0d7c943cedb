# mypy: ignore-errors
# group: cpu
# needs: x86_64
# tries: to bind itself to one core, and so mark it
# breach: it is bound
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(b"\x01", 8)
done = libc.syscall(203, 0, 8, buffer)
print("BREACH: it is bound" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
