# group: files
# tries: to exchange the root directory
# breach: pivot_root returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print("trying pivot_root")
libc.syscall({"x86_64": 155, "aarch64": 41}[os.uname().machine], b".", b".")
print(f"BREACH: pivot_root answered, errno {ctypes.get_errno()}")
