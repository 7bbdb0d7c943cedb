# group: syscalls
# tries: to install a system call filter of its own that allows everything
# breach: the filter is installed
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
# breaches-without: seccomp
import ctypes
import os

SECCOMP_SET_MODE_FILTER, SECCOMP_RET_ALLOW = 1, 0x7FFF0000


class Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jumps", ctypes.c_uint16), ("k", ctypes.c_uint32))


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction)))


libc = ctypes.CDLL(None, use_errno=True)
allow = Filter(1, ctypes.pointer(Instruction(6, 0, SECCOMP_RET_ALLOW)))
number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
result = libc.syscall(number, SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(allow))
print("BREACH: installed" if result == 0 else f"HELD: errno {ctypes.get_errno()}")
