# group: syscalls
# tries: process_madvise, to page out the memory of others
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("trying process_madvise")
libc.syscall(440, 0, 0, 0, 21, 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
