# group: network
# tries: io_uring, whose requests pass no system call filter
# breach: io_uring_setup returns at all
# expect: denied
# output: trying
# held-by: seccomp
# breaches-without: seccomp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(120)
print("trying io_uring_setup")
fd = libc.syscall(425, 4, parameters)
print(f"BREACH: descriptor {fd}, errno {ctypes.get_errno()}")
