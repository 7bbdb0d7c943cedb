# group: syscalls
# tries: system calls newer than the filter
# breach: one of them is known to the kernel
# expect: ok denied
# output: trying
# held-by: seccomp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
print("trying")
for number in (*range(463, 512), 1 << 20, -1):
    result = libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0)
    if result >= 0 or ctypes.get_errno() not in (1, 38):
        print(f"BREACH: {number} answered {result}, errno {ctypes.get_errno()}")
