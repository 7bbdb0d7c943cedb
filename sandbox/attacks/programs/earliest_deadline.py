# mypy: ignore-errors
# group: cpu
# needs: x86_64
# tries: to be scheduled by deadlines, before all others
# breach: it is granted
# expect: ok
# output: HELD
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
data = b"".join(number.to_bytes(4, "little") for number in (48, 6, 0, 0, 0, 0))
data += b"".join(number.to_bytes(8, "little") for number in (10**7, 10**8, 10**8))
buffer = ctypes.create_string_buffer(data, 48)
done = libc.syscall(314, 0, buffer, 0)
print("BREACH: it is granted" if done >= 0 else f"HELD: {os.strerror(ctypes.get_errno())}")
