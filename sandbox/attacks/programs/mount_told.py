# mypy: ignore-errors
# group: files
# needs: x86_64
# tries: facts about a mount by its number
# breach: they are told
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(457, buffer, buffer, 64, 0)
print("BREACH: they are told" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
