# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: the length of the time slice of another process
# breach: it is told
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(148, os.getppid(), buffer)
print("BREACH: it is told" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
