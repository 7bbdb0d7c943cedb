# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: which pages of a library are in the cache (mincore)
# breach: it is told
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(16)
done = libc.syscall(27, ctypes.c_void_p(id(libc) & ~4095), 4096, buffer)
print("BREACH: it is told" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
