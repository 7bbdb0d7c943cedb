# group: processes
# tries: setns, to enter the namespaces of another process
# breach: setns returns at all
# expect: denied
# output: trying
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print("trying setns")
libc.syscall({"x86_64": 308, "aarch64": 268}[os.uname().machine], 0, 0)
print(f"BREACH: setns answered, errno {ctypes.get_errno()}")
