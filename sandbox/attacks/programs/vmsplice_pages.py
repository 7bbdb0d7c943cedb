# group: ipc
# tries: to give pages away into a pipe and to change them afterwards
# breach: the pages are in the pipe
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
# breaches-without: seccomp
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
page = ctypes.create_string_buffer(8192)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(page), 4096)
_, write_end = os.pipe()
sent = libc.vmsplice(write_end, ctypes.byref(vector), 1, 8)
print("BREACH: given" if sent > 0 else f"HELD: errno {ctypes.get_errno()}")
