# group: others
# tries: process_vm_writev on the fork server, so that every later call runs the attacker's code
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp, landlock, nnp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print("trying process_vm_writev")
number = {"x86_64": 311, "aarch64": 271}[os.uname().machine]
libc.syscall(number, os.getppid(), 0, 0, 0, 0, 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
