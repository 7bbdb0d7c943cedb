# group: processes
# tries: a user namespace of its own, where it would be root
# breach: unshare returns 0
# expect: denied
# output: trying
# held-by: seccomp
# breaches-without: seccomp when userns
import ctypes
import os

CLONE_NEWUSER = 0x10000000
libc = ctypes.CDLL(None, use_errno=True)
print("trying unshare")
result = libc.syscall({"x86_64": 272, "aarch64": 97}[os.uname().machine], CLONE_NEWUSER)
print("BREACH: root of a namespace" if result == 0 else f"errno {ctypes.get_errno()}")
