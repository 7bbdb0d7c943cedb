# group: syscalls
# tries: to read the kernel's log, with addresses and names of other programs
# breach: its size or text comes back
# expect: ok
# output: HELD: errno 1
# held-by: seccomp, nnp
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
text = ctypes.create_string_buffer(4096)
size = libc.klogctl(3, text, 4096)
print(f"BREACH: {size} bytes" if size >= 0 else f"HELD: errno {ctypes.get_errno()}")
