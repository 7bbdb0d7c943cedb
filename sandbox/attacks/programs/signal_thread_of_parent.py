# group: others
# tries: tkill, which names a thread and no process
# breach: the signal is sent
# expect: ok
# output: HELD: errno
# held-by: seccomp, landlock, uid
import ctypes
import os
import signal

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 200, "aarch64": 130}[os.uname().machine]
result = libc.syscall(number, os.getppid(), int(signal.SIGCONT))
print("BREACH: sent" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
