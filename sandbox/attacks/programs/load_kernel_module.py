# group: syscalls
# tries: to load a kernel module
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print("trying init_module")
libc.syscall({"x86_64": 175, "aarch64": 105}[os.uname().machine], 0, 0, b"")
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
