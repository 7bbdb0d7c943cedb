# group: syscalls
# tries: to change the table of memory segments, a source of kernel bugs
# breach: the call returns at all
# expect: denied
# output: trying
# held-by: seccomp
# needs: x86_64
# breaches-without: seccomp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
table = ctypes.create_string_buffer(16)
print("trying modify_ldt")
result = libc.syscall(154, 0, table, 16)
print(f"BREACH: it answered {result}, errno {ctypes.get_errno()}")
