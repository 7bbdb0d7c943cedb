# group: files
# tries: the newer calls of mounting, which old filters do not know
# breach: fsopen returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("trying fsopen")
libc.syscall(430, b"tmpfs", 0)
print(f"BREACH: fsopen answered, errno {ctypes.get_errno()}")
