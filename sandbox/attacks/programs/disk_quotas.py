# group: syscalls
# tries: to change disk quotas
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print("trying quotactl")
libc.syscall({"x86_64": 179, "aarch64": 60}[os.uname().machine], 0, 0, 0, 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
