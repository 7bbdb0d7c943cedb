# group: syscalls
# tries: direct access to hardware ports
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
# needs: x86_64
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("trying iopl")
libc.syscall(172, 3)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
