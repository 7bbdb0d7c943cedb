# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: to read a library only if it is in the cache (RWF_NOWAIT)
# breach: it is read
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
target = ctypes.create_string_buffer(64)
buffer = (ctypes.c_void_p * 2)(ctypes.addressof(target), 64)
done = libc.syscall(327, fd, buffer, 1, ctypes.c_long(0), 0, 8)
print("BREACH: it is read" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
