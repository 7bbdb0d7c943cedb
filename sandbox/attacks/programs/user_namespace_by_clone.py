# group: processes
# tries: clone with CLONE_NEWUSER in place of unshare
# breach: clone returns a process id
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
# breaches-without: seccomp when userns
import ctypes
import os

CLONE_NEWUSER, SIGCHLD = 0x10000000, 17
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
pid = libc.syscall(number, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
if pid > 0:
    os.waitpid(pid, 0)
print(f"HELD: errno {ctypes.get_errno()}" if pid < 0 else "BREACH: a child in its own namespace")
