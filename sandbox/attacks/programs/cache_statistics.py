# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: the statistics of a file in the cache (cachestat)
# breach: they are told
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(451, fd, buffer, buffer, 0)
print("BREACH: they are told" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
