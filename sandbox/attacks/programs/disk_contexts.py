# mypy: ignore-errors
# group: memory
# needs: x86_64
# tries: contexts for asynchronous reads, which the whole machine counts
# breach: one is made
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(206, 128, buffer)
print("BREACH: one is made" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
