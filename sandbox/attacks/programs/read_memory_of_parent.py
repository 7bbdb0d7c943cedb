# group: others
# tries: process_vm_readv on its parent
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, landlock, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64)
remote = (ctypes.c_size_t * 2)(id(os), 64)
print("trying process_vm_readv")
number = {"x86_64": 310, "aarch64": 270}[os.uname().machine]
libc.syscall(number, os.getppid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
