# group: processes
# tries: the raw clone call with CLONE_VFORK, as posix_spawn would, but without shared memory
# breach: clone returns a process id
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
# breaches-without: seccomp
import ctypes
import os

CLONE_VFORK, SIGCHLD = 0x4000, 17
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
pid = libc.syscall(number, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
if pid > 0:
    os.waitpid(pid, 0)
print(f"HELD: errno {ctypes.get_errno()}" if pid < 0 else "BREACH: a child existed")
