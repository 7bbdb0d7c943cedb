# group: syscalls
# tries: memory that even the kernel cannot see
# breach: it exists
# expect: denied
# output: trying
# held-by: seccomp
# breaches-without: seccomp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("trying memfd_secret")
fd = libc.syscall(447, 0)
print(f"BREACH: descriptor {fd}, errno {ctypes.get_errno()}")
