# group: syscalls
# tries: to reboot, with numbers that no kernel accepts
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print("trying reboot")
libc.syscall({"x86_64": 169, "aarch64": 142}[os.uname().machine], 0, 0, 0, 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
