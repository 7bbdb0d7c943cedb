# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: to bring pages of a library into the cache without reading them
# breach: it is done
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
done = libc.syscall(187, fd, 0, 4096)
print("BREACH: it is done" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
