# group: processes
# tries: capset, to take back what was dropped
# breach: the effective set is not empty afterwards
# expect: ok
# output: HELD: errno 1
# held-by: seccomp, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
number = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
result = libc.syscall(number, ctypes.byref(header), ctypes.byref(data))
print("BREACH: capabilities" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
