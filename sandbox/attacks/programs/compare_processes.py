# group: others
# tries: kcmp, which tells kernel addresses apart and what processes share
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp
# breaches-without: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print("trying kcmp")
number = {"x86_64": 312, "aarch64": 272}[os.uname().machine]
result = libc.syscall(number, os.getpid(), os.getpid(), 1, 0, 0)
print(f"BREACH: it answered {result}")
