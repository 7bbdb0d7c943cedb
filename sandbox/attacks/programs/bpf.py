# group: syscalls
# tries: to load a program into the kernel
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
attributes = ctypes.create_string_buffer(128)
print("trying bpf")
libc.syscall({"x86_64": 321, "aarch64": 280}[os.uname().machine], 0, attributes, 128)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
