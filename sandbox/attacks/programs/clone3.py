# group: processes
# tries: clone3, whose flags lie in memory, where a system call filter cannot look
# breach: clone3 returns a process id
# expect: ok
# output: HELD: errno 38
# held-by: seccomp
# breaches-without: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
arguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, 17, 0, 0, 0)
pid = libc.syscall(435, ctypes.byref(arguments), ctypes.sizeof(arguments))
if pid == 0:
    os._exit(0)
if pid > 0:
    os.waitpid(pid, 0)
print(f"HELD: errno {ctypes.get_errno()}" if pid < 0 else "BREACH: clone3 made a child")
