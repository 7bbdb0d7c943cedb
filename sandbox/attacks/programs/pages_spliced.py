# mypy: ignore-errors
# group: files
# needs: x86_64
# tries: to splice pages of a library into a pipe, instead of copying them
# breach: they are spliced
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
done = libc.syscall(275, fd, None, 1, None, 64, 0)
print("BREACH: they are spliced" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
