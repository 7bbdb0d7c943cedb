# mypy: ignore-errors
# group: files
# needs: x86_64
# tries: a handle of a file, with the number of its file system
# breach: it is given
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(b"\x40", 256)
done = libc.syscall(303, -100, b".", buffer, buffer, 0)
print("BREACH: it is given" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
