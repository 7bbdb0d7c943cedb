# group: others
# tries: tgkill, which names a process and one of its threads
# breach: the signal is sent
# expect: ok
# output: HELD: errno
# held-by: seccomp, landlock
import ctypes
import os
import signal

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 234, "aarch64": 131}[os.uname().machine]
result = libc.syscall(number, os.getppid(), os.getppid(), int(signal.SIGCONT))
print("BREACH: sent" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
