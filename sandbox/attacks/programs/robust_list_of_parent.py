# mypy: ignore-errors
# group: secrets
# needs: x86_64
# tries: where in their memory its parents and others keep the list of their locks
# breach: an address is told
# expect: ok denied
# output: HELD|\A\Z
# held-by: seccomp
# stdin: facts
import ctypes
import json
import os

libc = ctypes.CDLL(None, use_errno=True)
head, size = ctypes.c_void_p(), ctypes.c_size_t()
for pid in (os.getppid(), 1, *json.loads(input())["pids"]):
    if pid != os.getpid() and libc.syscall(274, pid, ctypes.byref(head), ctypes.byref(size)) == 0:
        print(f"BREACH: {pid} {head.value}")
print("HELD")
