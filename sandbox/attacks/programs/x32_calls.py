# group: syscalls
# tries: the x32 numbers of system calls, which a filter of 64-bit numbers does not know
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp
# needs: x86_64
import ctypes

X32_BIT, GETPID = 0x40000000, 39
libc = ctypes.CDLL(None, use_errno=True)
print("trying x32")
result = libc.syscall(X32_BIT | GETPID)
print(f"BREACH: it answered {result}, errno {ctypes.get_errno()}")
