# group: processes
# tries: raw clone with CLONE_PARENT, to be a child of the program's parent and to outlive the program
# breach: clone returns a process id
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
import ctypes
import os

CLONE_PARENT, SIGCHLD = 0x8000, 17
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
pid = libc.syscall(number, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
print(f"HELD: errno {ctypes.get_errno()}" if pid < 0 else "BREACH: a sibling exists")
