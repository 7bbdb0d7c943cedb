# group: others
# tries: pidfd_getfd, to copy a descriptor out of another process
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("trying pidfd_getfd")
libc.syscall(438, 0, 0, 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
