# group: syscalls
# tries: performance counters, which tell about other processes and have had many bugs
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
attributes = ctypes.create_string_buffer(128)
print("trying perf_event_open")
libc.syscall({"x86_64": 298, "aarch64": 241}[os.uname().machine], attributes, 0, -1, -1, 0)
print(f"BREACH: it answered, errno {ctypes.get_errno()}")
