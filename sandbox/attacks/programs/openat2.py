# group: files
# tries: openat2, whose flags lie in memory, where a system call filter cannot look
# breach: it opens a file for writing
# expect: ok
# output: HELD: errno 38
# held-by: seccomp, landlock
import ctypes

AT_FDCWD, O_RDWR_CREAT = -100, 0o102
libc = ctypes.CDLL(None, use_errno=True)
how = (ctypes.c_uint64 * 3)(O_RDWR_CREAT, 0o600, 0)
fd = libc.syscall(437, AT_FDCWD, b"/tmp/rocstar-breach", ctypes.byref(how), ctypes.sizeof(how))
print("BREACH: open for writing" if fd >= 0 else f"HELD: errno {ctypes.get_errno()}")
