# group: ipc
# tries: a POSIX message queue, kept by the kernel after the process
# breach: it exists
# expect: ok
# output: HELD: errno
# held-by: seccomp, rlimits, namespaces
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 240, "aarch64": 180}[os.uname().machine]
fd = libc.syscall(number, b"rocstar-breach", os.O_CREAT | os.O_RDWR, 0o600, None)
print("BREACH: a queue" if fd >= 0 else f"HELD: errno {ctypes.get_errno()}")
