# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: to have pages written out, and see how long that takes
# breach: it is done
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(os.path.realpath(os.__file__), os.O_RDONLY)
done = libc.syscall(277, fd, 0, 4096, 2)
print("BREACH: it is done" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
