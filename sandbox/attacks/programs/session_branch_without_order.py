# group: sessions
# mode: session
# tries: the very clone call that makes a branch, without an order for one
# breach: it returns a process id
# expect: ok
# output: HELD: errno 1$
# held-by: seccomp, the supervisor
import ctypes
import os

BRANCH_FLAGS = 0x8000 | 0x1000000 | 17
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
pid = libc.syscall(number, ctypes.c_long(BRANCH_FLAGS), 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
print("BREACH: a sibling" if pid > 0 else f"HELD: errno {ctypes.get_errno()}")
