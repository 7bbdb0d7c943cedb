# group: processes
# tries: a process (not a thread) that shares the program's memory and files but has signals of its own
# breach: clone returns a process id
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
import ctypes
import os

CLONE_VM, CLONE_FS, CLONE_FILES = 0x100, 0x200, 0x400
libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
stack = ctypes.create_string_buffer(1 << 20)
top = ctypes.addressof(stack) + (1 << 20) - 64
pid = libc.syscall(number, CLONE_VM | CLONE_FS | CLONE_FILES, ctypes.c_void_p(top), 0, 0, 0)
print(f"HELD: errno {ctypes.get_errno()}" if pid < 0 else "BREACH: it runs")
