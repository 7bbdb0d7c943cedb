# mypy: ignore-errors
# group: ipc
# needs: x86_64
# tries: to wake who waits on a shared word by the newer call (futex_wake)
# breach: it is done
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
done = libc.syscall(454, buffer, ctypes.c_ulong(1), 1, 2)
print("BREACH: it is done" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
