# group: syscalls
# tries: userfaultfd, with which kernel races are won
# breach: the descriptor exists
# expect: denied
# output: trying
# held-by: seccomp
# breaches-without: seccomp
import ctypes
import os

USER_MODE_ONLY = 1
libc = ctypes.CDLL(None, use_errno=True)
print("trying userfaultfd")
fd = libc.syscall({"x86_64": 323, "aarch64": 282}[os.uname().machine], USER_MODE_ONLY)
print(f"BREACH: descriptor {fd}, errno {ctypes.get_errno()}")
