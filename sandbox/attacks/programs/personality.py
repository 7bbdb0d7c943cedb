# group: syscalls
# tries: to switch off the random layout of memory for what it executes
# breach: the personality has changed
# expect: ok
# output: HELD: errno 1
# held-by: seccomp
# breaches-without: seccomp
import ctypes

ADDR_NO_RANDOMIZE = 0x0040000
libc = ctypes.CDLL(None, use_errno=True)
result = libc.personality(ADDR_NO_RANDOMIZE)
print("BREACH: changed" if result != -1 else f"HELD: errno {ctypes.get_errno()}")
