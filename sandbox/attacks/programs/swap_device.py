# group: syscalls
# tries: to switch on a swap file
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print("trying swapon")
libc.syscall({"x86_64": 167, "aarch64": 224}[os.uname().machine], b"/rocstar-breach", 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
