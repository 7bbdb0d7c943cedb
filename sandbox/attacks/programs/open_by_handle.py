# group: files
# tries: to open a file by its handle, past every path
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
handle = (ctypes.c_uint32 * 4)(8, 1, 2, 0)
print("trying open_by_handle_at")
libc.syscall({"x86_64": 304, "aarch64": 265}[os.uname().machine], 0, ctypes.byref(handle), 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
