# group: files
# tries: to watch a whole file system with fanotify
# breach: fanotify_init returns at all
# expect: denied
# output: trying
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print("trying fanotify_init")
libc.syscall({"x86_64": 300, "aarch64": 262}[os.uname().machine], 0, 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
