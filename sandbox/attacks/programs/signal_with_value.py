# group: others
# tries: rt_sigqueueinfo, which sends a signal with a forged sender
# breach: the signal is sent
# expect: ok
# output: HELD: errno
# held-by: seccomp, landlock, uid
import ctypes
import os
import signal

SI_QUEUE = -1
libc = ctypes.CDLL(None, use_errno=True)
info = (ctypes.c_int32 * 32)(int(signal.SIGCONT), 0, SI_QUEUE, 0)
number = {"x86_64": 129, "aarch64": 138}[os.uname().machine]
result = libc.syscall(number, os.getppid(), int(signal.SIGCONT), ctypes.byref(info))
print("BREACH: sent" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
