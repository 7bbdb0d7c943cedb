# mypy: ignore-errors
# group: memory
# needs: x86_64
# tries: keys of protection, of which a processor has sixteen
# breach: one is given
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
done = libc.syscall(330, 0, 0)
print("BREACH: one is given" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
