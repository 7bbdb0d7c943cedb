# mypy: ignore-errors
# group: others
# needs: x86_64
# tries: to have another process's memory paged out, or given back before its time
# breach: the kernel takes the advice
# expect: ok denied
# output: HELD|\A\Z
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
MADV_COLD, MADV_PAGEOUT = 20, 21
for fd in range(64):
    try:
        own = os.stat(f"/proc/self/fd/{fd}")
    except OSError:
        own = None
    vector = (ctypes.c_uint64 * 2)(id(libc) & ~4095, 4096)
    for advice in (MADV_COLD, MADV_PAGEOUT):
        if libc.syscall(440, fd, vector, 1, advice, 0) > 0:
            print(f"BREACH: {fd} {own}")
    if libc.syscall(448, fd, 0) == 0:
        print(f"BREACH: {fd} {own}")
print("HELD")
