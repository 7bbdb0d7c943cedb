# group: others
# tries: ptrace, to be traced by the fork server or to trace it
# breach: ptrace returns at all
# expect: denied
# output: trying
# held-by: seccomp
import ctypes
import os

PTRACE_ATTACH = 16
libc = ctypes.CDLL(None, use_errno=True)
print("trying ptrace")
libc.syscall({"x86_64": 101, "aarch64": 117}[os.uname().machine], PTRACE_ATTACH, os.getppid(), 0, 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
