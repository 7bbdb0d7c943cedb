# mypy: ignore-errors
# group: syscalls
# needs: x86_64
# tries: to make a set of Landlock rules, which the kernel counts
# breach: it is made
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(444, buffer, 8, 0)
print("BREACH: it is made" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
